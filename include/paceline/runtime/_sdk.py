"""The small ``paceline`` package that every job receives, so that any Python with torch can run training code.

``DockerRuntime`` copies the package to the container, ``ProcessRuntime`` to the scratch folder. Both put it first
on ``PYTHONPATH``.
"""

from __future__ import annotations

from pathlib import Path

# A job receives only ``paceline.train``, because other modules need libraries that an image may lack.
_STUB = b'"""Paceline inside a training job: only ``paceline.train`` is available."""\n'


def sdk_files() -> dict[str, bytes]:
    """Return the contents of the package's files by their path relative to the ``sdk`` folder.

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
