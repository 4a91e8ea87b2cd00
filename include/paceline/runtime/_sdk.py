"""The small package that every job receives, so that any Python with torch can run training code.

``DockerRuntime`` copies it into the container, ``ProcessRuntime`` into the scratch folder; both put it first on
``PYTHONPATH``.
"""

from __future__ import annotations

from pathlib import Path

# A job receives only ``paceline.train``: the rest of Paceline needs libraries that an image may lack.
_STUB = b'"""Paceline inside a training job: only ``paceline.train`` is available."""\n'


def sdk_files() -> dict[str, bytes]:
    """Return the files of the package: path relative to the ``sdk`` folder, and content.

    >>> sorted(sdk_files())[0]
    'paceline/__init__.py'
    >>> "paceline/train/progress.py" in sdk_files()
    True
    """
    package = Path(__file__).resolve().parent.parent
    files = {"paceline/__init__.py": _STUB, "paceline/py.typed": b""}
    for source in sorted((package / "train").rglob("*.py")):
        files[source.relative_to(package.parent).as_posix()] = source.read_bytes()
    return files
