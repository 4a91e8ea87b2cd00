"""What a training with Keras consists of beside its weights, for the adapter: metrics, seeds, callbacks, and identity.

Attributes of callbacks are stored as JSON and their arrays as an ``.npz`` file, so reading them runs no code.
"""

from __future__ import annotations

import copy
import json
import os
import warnings
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.train._values import log

from ._fingerprint import checksum, fingerprint

os.environ.setdefault("KERAS_BACKEND", "torch")
import keras
import numpy as np
from keras.src.random.seed_generator import global_seed_generator

_STATE, _ARRAYS = "state.json", "state.npz"
# Configuration that differs between processes, because Keras draws or chooses it, or that does not change the model.
_VARYING = {"name", "seed", "jit_compile", "run_eagerly"}


class CallbackStates:
    """The attributes of the callbacks that changed since training began.

    Create it after ``on_train_begin`` of the ``callbacks``. The k-th callback of a class gets the state of the k-th
    callback of this class.
    """

    def __init__(self, callbacks: list[Any]) -> None:
        self._callbacks: dict[str, Any] = {}
        for one in callbacks:
            name = type(one).__name__
            count = sum(type(other).__name__ == name for other in self._callbacks.values())
            self._callbacks[f"{name} {count + 1}" if count else name] = one
        self._fresh = {name: _digests(one) for name, one in self._callbacks.items()}
        self._restored: dict[str, dict[str, Any]] = {}  # the attributes, until the first epoch begins
        self._seeds: list[Any] = []
        self._metrics: list[Any] = []

    def save(self, model: Any, folder: Path) -> None:
        """Write the changed attributes, the random seeds and the sums of the metrics into a folder."""
        arrays: list[Any] = []
        states = {}
        for name, callback in self._callbacks.items():
            fresh = self._fresh[name]
            changed = [key for key, digest in _digests(callback).items() if fresh.get(key) != digest]
            states[name] = _packed({key: vars(callback)[key] for key in changed}, arrays)
        content = {
            "callbacks": states,
            "seeds": _packed(_values(_seeds(model)), arrays),
            "metrics": _packed(_values(model.metrics_variables), arrays),
        }
        (folder / _STATE).write_text(json.dumps(content), encoding="utf-8")
        np.savez(folder / _ARRAYS, *arrays)

    def restore(self, model: Any, folder: Path) -> None:
        """Restore what ``save`` wrote, but for the metrics; name the callbacks whose state is not in the folder."""
        states = {}
        if (folder / _STATE).exists():
            content = json.loads((folder / _STATE).read_text(encoding="utf-8"))
            with np.load(folder / _ARRAYS, allow_pickle=False) as stored:
                arrays = [stored[f"arr_{k}"] for k in range(len(stored.files))]
            states = {name: _unpacked(state, arrays) for name, state in content["callbacks"].items()}
            self._seeds, self._metrics = (_unpacked(content[name], arrays) for name in ("seeds", "metrics"))
            _assign(_seeds(model), self._seeds)
        if unknown := [name for name in self._callbacks if name not in states]:
            log(f"{folder} has no state of the callbacks {', '.join(unknown)}: they start afresh")
        for name, callback in self._callbacks.items():
            state = states.get(name, {})
            if "min_delta" in state and getattr(callback, "monitor_op", callback) is None:
                callback._set_monitor_op()  # Keras negates min_delta when it sets this function
            vars(callback).update(state)
        self._restored = {name: copy.deepcopy(_plain(one)) for name, one in self._callbacks.items()}

    def resume_epoch(self, model: Any) -> None:
        """Undo what the hooks at the start of an epoch changed since ``restore``, and restore the metrics."""
        for name, callback in self._callbacks.items():
            now = _plain(callback)
            vars(callback).update({key: value for key, value in self._restored[name].items() if key in now})
        _assign(_seeds(model), self._seeds)
        if len(model.metrics_variables) == len(self._metrics):
            _assign(model.metrics_variables, self._metrics)
        else:  # TensorFlow creates them in the first batch
            log("the averages of the training metrics in the interrupted epoch start afresh")
        self._restored, self._metrics = {}, []


def identity(model: Any, fit: Mapping[str, Any]) -> dict[str, str]:
    """Return what identifies the training of a model by a call of ``fit`` with these local variables."""
    values: dict[str, Any] = {"weights": [tuple(weight.shape) for weight in model.weights]}
    compiled = _config(model.get_compile_config) or {"optimizer": type(model.optimizer), "loss": model.loss}
    optimizer = compiled.pop("optimizer", None)
    values |= optimizer["config"] | {"optimizer": optimizer["class_name"]} if isinstance(optimizer, dict) else {}
    values |= compiled
    for number, layer in enumerate(model._flatten_layers(include_self=False)):
        own = {} if layer._layers else _config(layer.get_config)
        values |= {f"layer {number} {name}": value for name, value in ({"class": type(layer)} | own).items()}
    arrays = [one for one in keras.tree.flatten(fit["x"]) if hasattr(one, "shape")]
    return fingerprint(
        type(model),
        values,
        features=[tuple(one.shape) for one in arrays] or None,
        labels=_checksums(fit["y"]),
        sample_weight=_checksums(fit["sample_weight"]),
        class_weight=fit["class_weight"],
        batch_size=fit["batch_size"],
        structure=zlib.crc32(repr(_config(model.get_config)).encode()),  # includes the above, so the log names it last
    )


def _checksums(arrays: Any) -> list[int | None] | None:
    if arrays is None:
        return None
    plain = [keras.ops.convert_to_numpy(one) if keras.ops.is_tensor(one) else one for one in keras.tree.flatten(arrays)]
    return [checksum(one) for one in plain]


def _config(get: Any) -> dict[str, Any]:
    """Return a configuration without what differs between processes, such as numbered names and the code of lambdas.

    Empty if an object in it has no configuration.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on lambdas
            config = get()
    except (NotImplementedError, TypeError, ValueError, AttributeError):
        return {}
    names: dict[str, str] = {}
    _collect_names(config, names)
    cleaned: dict[str, Any] = _without_names(config, names)
    return cleaned


def _collect_names(config: Any, names: dict[str, str]) -> None:
    if isinstance(config, dict):
        if isinstance(name := config.get("name"), str):
            names.setdefault(name, f"name {len(names)}")
        for value in config.values():
            _collect_names(value, names)
    elif isinstance(config, (list, tuple)):
        for value in config:
            _collect_names(value, names)


def _without_names(config: Any, names: dict[str, str]) -> Any:
    if isinstance(config, dict):
        if config.get("class_name") == "__lambda__":
            return "lambda"
        return {key: _without_names(value, names) for key, value in config.items() if key not in _VARYING}
    if isinstance(config, (list, tuple)):
        return [_without_names(value, names) for value in config]
    return names.get(config, config) if isinstance(config, str) else config


def _seeds(model: Any) -> list[Any]:
    """Return the states of the model's random generators, which Keras does not save, and of the global generator."""
    weights = {id(one) for one in [*model.weights, *model.metrics_variables]}
    own = [one for one in model.variables if id(one) not in weights]
    return [*own, global_seed_generator().state]


def _values(variables: list[Any]) -> list[Any]:
    return [keras.ops.convert_to_numpy(one) for one in variables]


def _assign(variables: list[Any], values: list[Any]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def _plain(callback: Any) -> dict[str, Any]:
    """Return the attributes that a checkpoint can contain."""
    return {name: vars(callback)[name] for name in _digests(callback)}


def _digests(callback: Any) -> dict[str, int]:
    digests = {}
    for name, value in vars(callback).items():
        arrays: list[Any] = []
        try:
            digest = zlib.crc32(json.dumps(_packed(value, arrays)).encode())
        except TypeError:
            continue
        for array in arrays:
            digest = zlib.crc32(np.ascontiguousarray(array).tobytes(), digest)
        digests[name] = digest
    return digests


def _packed(value: Any, arrays: list[Any]) -> Any:
    """Return a JSON value for plain values; append arrays to ``arrays``. Raise ``TypeError`` for other values."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) in (list, tuple):
        return {type(value).__name__: [_packed(one, arrays) for one in value]}
    if type(value) is dict:
        return {"dict": [[_packed(key, arrays), _packed(one, arrays)] for key, one in value.items()]}
    kind = "tensor" if keras.ops.is_tensor(value) else "array"
    if kind == "tensor":
        value = keras.ops.convert_to_numpy(value)
    if isinstance(value, (np.ndarray, np.generic)) and not value.dtype.hasobject:
        arrays.append(value)
        return {kind: len(arrays) - 1, "dtype": value.dtype.name}
    raise TypeError(type(value).__name__)


def _unpacked(packed: Any, arrays: list[Any]) -> Any:
    if not isinstance(packed, dict):
        return packed
    kind, content = next(iter(packed.items()))
    if kind == "dict":
        return {_unpacked(key, arrays): _unpacked(one, arrays) for key, one in content}
    if kind in ("list", "tuple"):
        items = [_unpacked(one, arrays) for one in content]
        return items if kind == "list" else tuple(items)
    array = arrays[content]
    if array.dtype.kind == "V":  # numpy stores bfloat16 without its name
        array = array.view(np.dtype(packed["dtype"]))
    return keras.ops.convert_to_tensor(array) if kind == "tensor" else array if array.shape else array[()]
