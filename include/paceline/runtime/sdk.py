"""The small package that is put into every job, so that any Python with torch can run training code.

``DockerRuntime`` injects it in a tar, ``ProcessRuntime`` writes it as files; both put it first on ``PYTHONPATH``.
"""

from __future__ import annotations

from pathlib import Path

# Inside a job only ``paceline.train`` exists: the rest of Paceline would ask for libraries an image need not have.
_STUB = b'"""Paceline inside a training job: only ``paceline.train`` is here."""\n'


def sdk_files() -> dict[str, bytes]:
    """Return the files of the injected package: path relative to the ``sdk`` folder, and content.

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
