"""What every runtime asks of a ``JobSpec`` before it starts anything, and the digest by which it knows a spec again.

Called by ``DockerRuntime`` and ``ProcessRuntime``; knows no engine.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from paceline.errors import InvalidInputError, JobLostError
from paceline.runtime.base import JobSpec

_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,199}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_USER = re.compile(r"([0-9]{1,10})(?::([0-9]{1,10}))?")
_ID_MAX = 2**31 - 1  # engines refuse more
_MEMORY_MIN = 16 * 1024**2  # below this not even the interpreter starts, and engines refuse less than 6 MiB


def check_spec(spec: JobSpec) -> None:
    """Raise ``InvalidInputError`` for the first value in ``spec`` that no runtime could use.

    >>> check_spec(JobSpec(name="Big Job", command=["python"], devices=1))
    Traceback (most recent call last):
    paceline.errors.InvalidInputError: name: got 'Big Job', expected lower-case letters, digits, '-', '_' and '.', \
starting with a letter or digit, at most 200
    """
    if not isinstance(spec.name, str) or not _NAME.fullmatch(spec.name):
        accepted = "lower-case letters, digits, '-', '_' and '.', starting with a letter or digit, at most 200"
        raise InvalidInputError("name", spec.name, accepted)
    command = spec.command
    if isinstance(command, str) or not command or not all(isinstance(word, str) and word for word in command):
        raise InvalidInputError("command", command, "a list of a program and its arguments, none of them empty")
    check_devices(spec.devices)
    if spec.memory_bytes is not None and not _is_whole(spec.memory_bytes, _MEMORY_MIN):
        raise InvalidInputError("memory_bytes", spec.memory_bytes, f"None or at least {_MEMORY_MIN} (16 MiB)")
    if not _is_whole(spec.max_processes, 1):
        raise InvalidInputError("max_processes", spec.max_processes, "a whole number of at least 1")
    _check_user(spec.user, spec.allow_root)
    for variable in spec.environment:
        if not _VARIABLE.fullmatch(variable):
            raise InvalidInputError("environment", variable, "names of letters, digits and '_'")
        if not isinstance(spec.environment[variable], str) or "\0" in spec.environment[variable]:
            # The value may be a secret: it is not repeated.
            raise InvalidInputError("environment", variable, "this variable to hold text without a NUL character")
    for place, local in spec.files.items():
        _check_place("files", place)
        if not Path(local).is_file():
            raise InvalidInputError("files", str(local), f"an existing file to put at {place!r}")
    for place, local in spec.inputs.items():
        _check_place("inputs", place)
        if not Path(local).exists():
            raise InvalidInputError("inputs", str(local), f"an existing file or folder to put at {place!r}")


def check_devices(devices: float, field: str = "devices") -> None:
    """Raise unless ``devices`` is a finite number of cores above zero."""
    if isinstance(devices, bool) or not isinstance(devices, (int, float)):
        raise InvalidInputError(field, devices, "a number of cores above 0")
    if not math.isfinite(devices) or devices <= 0:
        raise InvalidInputError(field, devices, "a number of cores above 0")


def check_capacity(devices: float, capacity: float) -> None:
    """Raise if a job would start with more cores than there are."""
    if devices > capacity:
        raise InvalidInputError("devices", devices, f"at most {capacity:g}, the number of cores there")


def placed_files(spec: JobSpec) -> Iterator[tuple[str, Path]]:
    """Yield every file of ``spec``: its path below the job's home, and where it is now. Folders are walked.

    A link inside an input folder stands for what it points to, as the job could not follow it.
    """
    for place, local in sorted(spec.files.items()):
        yield f"work/{PurePosixPath(place)}", Path(local)
    for place, local in sorted(spec.inputs.items()):
        base = f"input/{PurePosixPath(place)}".rstrip("/.")
        if Path(local).is_dir():
            for found in sorted(Path(local).rglob("*")):
                if found.is_file():
                    yield f"{base}/{found.relative_to(local).as_posix()}", found
        else:
            yield base, Path(local)


def spec_digest(spec: JobSpec) -> str:
    """Return what tells one spec from another: same digest, same job.

    The number of cores is left out, because it changes while a job runs; contents of files are part of it.
    """
    digest = hashlib.blake2b(digest_size=16)
    values = {
        "name": spec.name,
        "command": list(spec.command),
        "image": spec.image,
        "environment": dict(sorted(spec.environment.items())),
        "gpus": spec.gpus,
        "memory_bytes": spec.memory_bytes,
        "max_processes": spec.max_processes,
        "user": spec.user,
        "network": spec.network,
        "own_network": spec.own_network,
        "alias": spec.alias,
        "way_out": spec.way_out,
        "published": sorted((port, list(place)) for port, place in spec.published.items()),
        "cgroup_parent": spec.cgroup_parent,
    }
    digest.update(json.dumps(values, sort_keys=True).encode())
    for place, local in placed_files(spec):
        digest.update(f"\0{place}\0{local.stat().st_size}\0".encode())
        with local.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def _check_user(user: str, allow_root: bool) -> None:
    found = _USER.fullmatch(user) if isinstance(user, str) else None
    numbers = [int(number) for number in found.groups() if number is not None] if found else []
    if not numbers or max(numbers) > _ID_MAX:
        raise InvalidInputError("user", user, f"'uid' or 'uid:gid', numbers of at most {_ID_MAX}")
    if numbers[0] == 0 and allow_root is not True:
        raise InvalidInputError("user", user, "an ordinary user, as '65532:65532', or allow_root=True")


def _check_place(field: str, place: str) -> None:
    path = PurePosixPath(place)
    if path.is_absolute() or ".." in path.parts or "\0" in place or (field == "files" and not path.parts):
        raise InvalidInputError(field, place, "a relative path without '..'")


def _is_whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def check_labels(job: str, found: Mapping[str, str] | None, wanted: Mapping[str, str] | None) -> None:
    """Raise ``JobLostError`` for a job of somebody else's: whoever says where it is may be wrong.

    >>> check_labels("container 4f0c", {"paceline.task": "train"}, {"paceline.task": "evaluate"})
    Traceback (most recent call last):
    paceline.errors.JobLostError: container 4f0c is another task's: paceline.task is 'train', not 'evaluate'
    """
    for name, value in (wanted or {}).items():
        if (found or {}).get(name) != value:
            raise JobLostError(f"{job} is another task's: {name} is {(found or {}).get(name)!r}, not {value!r}")
