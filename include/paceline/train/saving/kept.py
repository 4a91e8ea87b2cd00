"""``Kept``: plain values of the training code, such as the best score so far, that a checkpoint contains."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

from paceline.train._values import bad_value

_TYPE = "paceline:type"  # key of a dict that stands for a value which a checkpoint file cannot contain


class Kept(SimpleNamespace):
    """Values that survive a restart, as attributes: pass the object to ``checkpoint``.

    Parameters
    ----------
    **values:
        The values at the start of training: numbers, strings, ``None``, tensors, numpy values, arrays and generators,
        and lists, tuples, dicts, sets and deques of these. Later values may have other types.

    Raises
    ------
    ValueError
        When a checkpoint is written or registered, if a value has another type.

    Examples
    --------
    >>> from paceline.train import Kept
    >>> state = Kept(best=None, losses=[])
    >>> state.best = 0.3
    >>> restored = Kept(best=None, losses=[])
    >>> restored.load_state_dict(state.state_dict())
    >>> restored
    Kept(best=0.3, losses=[])
    """

    def state_dict(self) -> dict[str, Any]:
        """Return the values as a checkpoint stores them."""
        return {name: _stored(name, value) for name, value in vars(self).items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace the values by stored ones. A generator keeps its identity and gets the stored state."""
        for name, value in state.items():
            before = getattr(self, name, None)
            if before is not None and isinstance(value, dict) and value.get(_TYPE) == "generator":
                before.bit_generator.state = _restored(value["value"])
            else:
                setattr(self, name, _restored(value))


def _stored(name: str, value: Any) -> Any:
    if value is None or type(value) in (bool, int, float, complex, str, bytes):
        return value
    if type(value) in (list, tuple):
        return type(value)([_stored(name, item) for item in value])
    if type(value) is dict and _TYPE not in value:
        return {key: _stored(name, item) for key, item in value.items()}
    if type(value) in (set, deque):
        items = [_stored(name, item) for item in value]
        return {_TYPE: type(value).__name__, "value": items, "maxlen": getattr(value, "maxlen", None)}
    if type(value).__module__.partition(".")[0] == "torch" and hasattr(value, "untyped_storage"):
        return value.detach().clone()
    if hasattr(value, "bit_generator"):
        kind = type(value.bit_generator).__name__
        return {_TYPE: "generator", "value": _stored(name, value.bit_generator.state), "kind": kind}
    if (
        hasattr(value, "dtype")
        and hasattr(value, "tobytes")
        and not value.dtype.hasobject
        and value.dtype.names is None
    ):
        return {
            _TYPE: "array",
            "value": value.tobytes(),
            "dtype": value.dtype.name if value.dtype.kind == "V" else value.dtype.str,  # bfloat16 has no code
            "shape": getattr(value, "shape", ()),
        }
    accepted = "numbers, strings, None, tensors, numpy values, and lists, tuples, dicts, sets and deques of these"
    raise bad_value(name, f"a value of type {type(value).__name__}", accepted)


def _restored(value: Any) -> Any:
    if type(value) in (list, tuple):
        return type(value)(_restored(item) for item in value)
    if not isinstance(value, dict):
        return value
    kind = value.get(_TYPE)
    if kind is None:
        return {key: _restored(item) for key, item in value.items()}
    if kind == "set":
        return set(_restored(value["value"]))
    if kind == "deque":
        return deque(_restored(value["value"]), value["maxlen"])
    import numpy

    if kind == "generator":
        generator = numpy.random.Generator(getattr(numpy.random, value["kind"])())
        generator.bit_generator.state = _restored(value["value"])
        return generator
    array = numpy.frombuffer(value["value"], numpy.dtype(value["dtype"])).reshape(value["shape"]).copy()
    return array if value["shape"] else array[()]
