"""Checkpoint files without torch: a zip archive of JSON and of the bytes of arrays. Reading runs no code from a file.

For training code that does not use torch, such as JAX or numpy. Called by ``store``.
"""

from __future__ import annotations

import json
import zipfile
from typing import IO, Any, cast

_STRUCTURE = "structure.json"


def write(content: dict[str, Any], file: IO[bytes]) -> None:
    """Write nested dicts, lists and tuples of numbers, strings, bytes and ``None``.

    Raises ``TypeError`` that names another type.
    """
    blobs: list[bytes] = []
    structure = json.dumps(_encoded(content, blobs))
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(_STRUCTURE, structure)
        for number, blob in enumerate(blobs):
            archive.writestr(str(number), blob)


def check(state: Any) -> None:
    """Raise ``TypeError`` that names the type if ``write`` cannot write ``state``."""
    _encoded(state, [])


def read(file: IO[bytes]) -> dict[str, Any]:
    """Read what ``write`` has written.

    >>> import io
    >>> file = io.BytesIO()
    >>> write({"best": None, "w": b"12", 3: (1, 2.5)}, file)
    >>> _ = file.seek(0)
    >>> read(file)
    {'best': None, 'w': b'12', 3: (1, 2.5)}
    """
    with zipfile.ZipFile(file) as archive:
        return cast("dict[str, Any]", _decoded(json.loads(archive.read(_STRUCTURE)), archive))


def _encoded(value: Any, blobs: list[bytes]) -> Any:
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) is list:
        return [_encoded(item, blobs) for item in value]
    if type(value) is dict:
        return {"dict": [[_encoded(key, blobs), _encoded(item, blobs)] for key, item in value.items()]}
    if type(value) is tuple:
        return {"tuple": [_encoded(item, blobs) for item in value]}
    if type(value) is complex:
        return {"complex": [value.real, value.imag]}
    if type(value) is bytes:
        blobs.append(value)
        return {"bytes": len(blobs) - 1}
    raise TypeError(type(value).__name__)


def _decoded(value: Any, archive: zipfile.ZipFile) -> Any:
    if isinstance(value, list):
        return [_decoded(item, archive) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, inner),) = value.items()
    if kind == "dict":
        return {_decoded(key, archive): _decoded(item, archive) for key, item in inner}
    if kind == "tuple":
        return tuple(_decoded(item, archive) for item in inner)
    return complex(*inner) if kind == "complex" else archive.read(str(inner))
