"""``Kept``: plain values of the training code, such as the best score so far, that a checkpoint contains."""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from paceline.train._values import bad_value

_TYPE = "paceline:type"  # key of a dict that stands for a value which a checkpoint file cannot contain
_PYTHON, _LEGACY, _TORCH = "Random", "RandomState", "torch"  # kinds of generators; others are those of numpy


class Kept(SimpleNamespace):
    """Values that survive a restart, as attributes: pass the object to ``checkpoint``.

    Parameters
    ----------
    **values:
        The values at the start of training: numbers, strings, ``None``, tensors, numpy values and arrays, random
        generators of Python, numpy and torch, and lists, tuples, dicts, sets and deques of these. Later values may have
        other types. A restart changes lists, dicts, sets, deques, arrays, tensors and generators in place if the type
        and the shape are the same, so that other names of the same object stay valid. So it does with generators within
        lists, tuples, dicts and deques of the same size. The order of a set may change.

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

    def separate_from(self, values: Iterable[Any]) -> None:
        """Copy the tensors that are among ``values``, the state of other objects, which a restart must not change.

        An example is ``Kept(best=model.running_mean)``.
        """
        owned = {value.untyped_storage().data_ptr() for value in values if _is_tensor(value)}
        for name, value in vars(self).items():
            if _is_tensor(value) and value.untyped_storage().data_ptr() in owned:
                setattr(self, name, value.detach().clone())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace the values by stored ones, in place where possible."""
        used: set[int] = set()  # an object that is the value of two names is changed for one of them
        for name, stored in state.items():
            before = getattr(self, name, None)
            value = _restored(stored, before)
            if id(before) not in used and _replace_content(before, value):
                used.add(id(before))
            else:
                setattr(self, name, value)


class KeptVariables:
    """Variables of a script or of an object that survive a restart: pass the object to ``checkpoint``.

    The script uses its variables as before, also in functions with ``global``. Local variables need :class:`Kept`:
    ``locals()`` does not work.

    Parameters
    ----------
    variables:
        ``globals()``, or ``vars(an_object)``.
    *names:
        Names of variables that exist already, each with a value of a type that :class:`Kept` accepts. Without names,
        each checkpoint contains all variables that exist then; use this for an object, not for ``globals()``.

    Raises
    ------
    ValueError
        If a variable does not exist. When a checkpoint is written or registered, if a value has another type.

    Examples
    --------
    >>> from paceline.train import KeptVariables
    >>> variables = {"best": 0.3, "model": object()}
    >>> KeptVariables(variables, "best").state_dict()
    {'best': 0.3}
    """

    def __init__(self, variables: dict[str, Any], /, *names: str) -> None:
        if not isinstance(variables, dict):
            raise bad_value("KeptVariables", type(variables).__name__, "globals() or vars(an_object), then names")
        caller = sys._getframe(1)
        if variables is not caller.f_globals and variables.keys() == caller.f_locals.keys():
            raise bad_value("KeptVariables", "locals()", "globals() or vars(an_object); keep local variables in a Kept")
        self._variables, self._names = variables, names
        self._current()

    def state_dict(self) -> dict[str, Any]:
        """Return the values as a checkpoint stores them."""
        return self._current().state_dict()

    def separate_from(self, values: Iterable[Any]) -> None:
        """Copy tensors, as :meth:`Kept.separate_from` describes."""
        kept = self._current()
        kept.separate_from(values)
        self._variables.update(vars(kept))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace the values by stored ones, in place where possible."""
        kept = self._current()
        kept.load_state_dict(state)
        self._variables.update(vars(kept))

    def _current(self) -> Kept:
        for name in self._names:
            if name not in self._variables:
                raise bad_value("KeptVariables", name, "the name of a variable that has a value")
        return Kept(**{name: self._variables[name] for name in self._names or self._variables})


def _replace_content(before: Any, value: Any) -> bool:
    """Give ``before`` the content of ``value``; return whether this is possible."""
    if type(before) is not type(value) or before is value:
        return before is value
    if isinstance(value, (list, deque)) and getattr(before, "maxlen", None) == getattr(value, "maxlen", None):
        before.clear()
        before.extend(value)
    elif isinstance(value, (dict, set)):
        before.clear()
        before.update(value)
    elif hasattr(value, "shape") and before.shape == value.shape and before.dtype == value.dtype:
        if _is_tensor(value):
            if before.requires_grad:  # perhaps a weight, which the optimizer changes
                return False
            before.copy_(value)
        elif not before.flags.writeable:  # as are numpy's numbers
            return False
        else:
            before[...] = value
    else:
        return False
    return True


def _bytes(array: Any) -> Any:
    """Return the bytes of an array, as a tensor if the checkpoint is a file of torch, which takes long for bytes."""
    content = array.tobytes()
    if not content or (torch := sys.modules.get("torch")) is None:
        return content
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def _dtype(dtype: Any) -> str:
    added = dtype.kind == "V" and dtype.type.__name__ != "void"  # such as bfloat16, which has no code of its own
    return str(dtype.name if added else dtype.str)


def _is_special_array(value: Any) -> bool:
    """Return whether the value is of a subclass of numpy's array, such as a masked one, which has more than values."""
    import numpy

    return isinstance(value, numpy.ndarray) and type(value) is not numpy.ndarray


def _is_tensor(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] == "torch" and hasattr(value, "untyped_storage")


def _stored(name: str, value: Any) -> Any:
    if value is None or type(value) in (bool, int, float, complex, str, bytes):
        return value
    # Copies of the containers, because other threads may change them.
    if type(value) in (list, tuple):
        return type(value)([_stored(name, item) for item in list(value)])
    if type(value) is dict and _TYPE not in value:
        return {key: _stored(name, item) for key, item in list(value.items())}
    if type(value) in (set, deque):
        items = [_stored(name, item) for item in list(value)]
        return {_TYPE: type(value).__name__, "value": items, "maxlen": getattr(value, "maxlen", None)}
    if _is_tensor(value):
        if value.requires_grad and value.is_leaf:
            accepted = "a copy, tensor.detach().clone(), or the optimizer and the module in checkpoint()"
            raise bad_value(name, "a tensor that is trained (requires_grad=True)", accepted)
        return value.detach().clone()
    if (kind := _kind_of_generator(value)) is not None:
        return {_TYPE: "generator", "value": _stored(name, _state_of(value, kind)), "kind": kind}
    if (
        hasattr(value, "dtype")
        and hasattr(value, "tobytes")
        and not value.dtype.hasobject
        and value.dtype.names is None
        and not _is_special_array(value)
    ):
        return {
            _TYPE: "array",
            "value": _bytes(value),
            "dtype": _dtype(value.dtype),
            "shape": getattr(value, "shape", ()),
            "number": type(value).__name__ != "ndarray",  # an array may have no dimensions
        }
    accepted = (
        "numbers, strings, None, tensors, numpy values, random generators, and lists, tuples, dicts, sets and deques "
        "of these"
    )
    raise bad_value(name, f"a value of type {type(value).__name__}", accepted)


def _restored(value: Any, before: Any = None) -> Any:
    """Return a stored value as it was; the generators in ``before`` at the same places are changed in place."""
    if type(value) in (list, tuple):
        return type(value)(map(_restored, value, _places(before, type(value), len(value))))
    if not isinstance(value, dict):
        return value
    kind = value.get(_TYPE)
    if kind is None:
        own = before if isinstance(before, dict) else {}
        return {key: _restored(item, own.get(key)) for key, item in value.items()}
    if kind == "set":
        return set(_restored(value["value"]))
    if kind == "deque":
        items = value["value"]
        return deque(map(_restored, items, _places(before, deque, len(items))), value["maxlen"])
    if kind == "generator":
        return _restored_generator(value, before)
    import numpy

    content = value["value"].numpy() if _is_tensor(value["value"]) else value["value"]
    array = numpy.frombuffer(content, numpy.dtype(value["dtype"])).reshape(value["shape"]).copy()
    return array[()] if value.get("number", not value["shape"]) else array


def _places(before: Any, kind: type[Any], number: int) -> list[Any]:
    return list(before) if type(before) is kind and len(before) == number else [None] * number


def _kind_of_generator(value: Any) -> str | None:
    if hasattr(value, "bit_generator"):
        return type(value.bit_generator).__name__
    kinds = {("random", "Random"): _PYTHON, ("numpy.random.mtrand", "RandomState"): _LEGACY}
    kinds["torch._C", "Generator"] = _TORCH
    return kinds.get((type(value).__module__, type(value).__name__))


def _state_of(generator: Any, kind: str) -> Any:
    if kind == _PYTHON:
        return generator.getstate()
    if kind == _LEGACY:
        return generator.get_state(legacy=False)
    return generator.get_state() if kind == _TORCH else generator.bit_generator.state


def _restored_generator(stored: dict[str, Any], before: Any) -> Any:
    """Return ``before``, or a new generator of the stored kind if it is of another kind, with the stored state."""
    kind, state = stored["kind"], _restored(stored["value"])
    generator = before if _kind_of_generator(before) == kind else _new_generator(kind)
    if kind == _PYTHON:
        generator.setstate(state)
    elif kind in (_LEGACY, _TORCH):
        generator.set_state(state)
    else:
        generator.bit_generator.state = state
    return generator


def _new_generator(kind: str) -> Any:
    if kind == _PYTHON:
        return random.Random()  # noqa: S311
    if kind == _TORCH:
        import torch

        return torch.Generator()
    import numpy

    if kind == _LEGACY:
        return numpy.random.RandomState()
    return numpy.random.Generator(getattr(numpy.random, kind)())
