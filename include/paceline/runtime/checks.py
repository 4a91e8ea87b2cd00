"""Validation of a ``JobSpec``, and the digest that identifies it.

Called by ``DockerRuntime`` and ``ProcessRuntime``; independent of any engine.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from paceline.errors import InvalidInputError, JobLostError
from paceline.runtime.base import JobSpec

_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,199}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_USER = re.compile(r"([0-9]{1,10})(?::([0-9]{1,10}))?")
_ID_MAX = 2**31 - 1  # the limit of Docker engines
DISK_MIN = 16 * 1024**2
MEMORY_MIN = 16 * 1024**2  # Python does not start with less memory; engines reject less than 6 MiB


def check_spec(spec: JobSpec) -> None:
    """Raise ``InvalidInputError`` for the first invalid value in ``spec``.

    >>> check_spec(JobSpec(name="Big Job", command=["python"], devices=1))
    Traceback (most recent call last):
    paceline.errors.InvalidInputError: name: got 'Big Job', expected at most 200 lower-case letters, digits, '-', \
'_' and '.', starting with a letter or digit
    """
    if not isinstance(spec.name, str) or not _NAME.fullmatch(spec.name):
        accepted = "at most 200 lower-case letters, digits, '-', '_' and '.', starting with a letter or digit"
        raise InvalidInputError("name", spec.name, accepted)
    command = spec.command
    if isinstance(command, str) or not command or not all(isinstance(word, str) and word for word in command):
        raise InvalidInputError("command", command, "a list of non-empty strings: a program and its arguments")
    check_devices(spec.devices)
    if not (spec.shares_gpus and spec.cores_per_device == math.inf):
        check_devices(spec.cores_per_device, "cores_per_device")
    is_amount = isinstance(spec.gpus, (int, float)) and 0 <= spec.gpus < math.inf
    if not is_amount or (spec.gpus != int(spec.gpus) and not (spec.shares_gpus and spec.gpus < 1)):
        accepted = "a whole number; only a training whose devices are a share of its GPU may have a part of one"
        raise InvalidInputError("gpus", spec.gpus, accepted)
    if spec.shares_gpus and spec.devices > spec.gpus:
        raise InvalidInputError("devices", spec.devices, f"at most {spec.gpus}, the number of the job's GPUs")
    if spec.memory_bytes is not None and not _is_integer(spec.memory_bytes, MEMORY_MIN):
        raise InvalidInputError("memory_bytes", spec.memory_bytes, f"None or at least {MEMORY_MIN} (16 MiB)")
    check_max_processes(spec.max_processes)
    if spec.disk_bytes is not None and not _is_integer(spec.disk_bytes, DISK_MIN):
        raise InvalidInputError("disk_bytes", spec.disk_bytes, f"None or at least {DISK_MIN} (16 MiB)")
    check_user(spec.user, spec.allow_root)
    if spec.options is not None and (isinstance(spec.options, type) or not is_dataclass(spec.options)):
        raise InvalidInputError("options", spec.options, "a frozen dataclass with settings of one runtime, or None")
    for variable in spec.environment:
        if not _VARIABLE.fullmatch(variable):
            raise InvalidInputError("environment", variable, "letters, digits and '_', not starting with a digit")
        if not isinstance(spec.environment[variable], str) or "\0" in spec.environment[variable]:
            # The value may be a secret: keep it out of the message.
            raise InvalidInputError(
                "environment", variable, "a variable whose value is a string without a NUL character"
            )
    for target, local in spec.files.items():
        check_target("files", target)
        if not Path(local).is_file():
            raise InvalidInputError("files", str(local), f"an existing file to place at {target!r}")
    for target, local in spec.inputs.items():
        check_target("inputs", target)
        if not Path(local).exists():
            raise InvalidInputError("inputs", str(local), f"an existing file or folder to place at {target!r}")
    if spec.checkpoint is not None and not spec.checkpoint.is_dir():
        raise InvalidInputError("checkpoint", str(spec.checkpoint), "an existing folder, or None")


def check_devices(devices: float, field: str = "devices") -> None:
    """Raise unless ``devices`` is a finite number of cores greater than 0."""
    if isinstance(devices, bool) or not isinstance(devices, (int, float)):
        raise InvalidInputError(field, devices, "a number of cores greater than 0")
    if not math.isfinite(devices) or devices <= 0:
        raise InvalidInputError(field, devices, "a number of cores greater than 0")


def check_capacity(spec: JobSpec, capacity: float) -> None:
    """Raise ``InvalidInputError`` if a job would start with more cores than the runtime has."""
    if spec.shares_gpus:
        gpus = math.ceil(spec.gpus)
        if capacity < gpus * spec.cores_per_device < math.inf:
            accepted = f"at most {capacity / gpus:g}, the number of cores that the runtime has for each GPU of the job"
            raise InvalidInputError("cores_per_device", spec.cores_per_device, accepted)
    elif spec.devices * spec.cores_per_device > capacity:
        accepted = f"at most {capacity / spec.cores_per_device:g}, the number of cores that the runtime has"
        if spec.cores_per_device != 1:
            accepted += f" ({capacity:g}) divided by cores_per_device"
        raise InvalidInputError("devices", spec.devices, accepted)


def placed_files(spec: JobSpec) -> Iterator[tuple[str, Path]]:
    """Yield the path below the job's home and the local path of every file and input, including subfolders.

    Yield the target file for a link in an input folder, because the job could not follow the link. Reject a link to a
    folder, and everything that is neither a file nor a folder.
    """
    for target, local in sorted(spec.files.items()):
        yield f"work/{PurePosixPath(target)}", Path(local)
    for target, local in sorted(spec.inputs.items()):
        base = f"input/{PurePosixPath(target)}".rstrip("/.")
        if Path(local).is_dir():
            for file in sorted(Path(local).rglob("*")):
                if file.is_file():
                    yield f"{base}/{file.relative_to(local).as_posix()}", file
                elif file.is_symlink() or not file.is_dir():
                    raise InvalidInputError("inputs", str(file), "files, links to files, and folders")
        elif Path(local).is_file():
            yield base, Path(local)
        else:
            raise InvalidInputError("inputs", str(local), "a file or a folder")


def job_files(spec: JobSpec) -> Iterator[tuple[str, Path]]:
    """Yield the path below the job's home and the local path of every file, including those of the checkpoint."""
    yield from placed_files(spec)
    if spec.checkpoint is not None:
        for file in sorted(spec.checkpoint.rglob("*")):
            if file.is_file():
                yield f"checkpoint/{file.relative_to(spec.checkpoint).as_posix()}", file


def spec_digest(spec: JobSpec) -> str:
    """Return a digest that is equal for specs of the same job.

    The digest includes the contents of files, and excludes the number of cores, which changes while a job runs, and the
    checkpoint.
    """
    values = {
        "name": spec.name,
        "command": list(spec.command),
        "image": spec.image,
        "environment": dict(sorted(spec.environment.items())),
        "gpus": spec.gpus,
        "cores_per_device": spec.cores_per_device,
        "memory_bytes": spec.memory_bytes,
        "max_processes": spec.max_processes,
        "disk_bytes": spec.disk_bytes,
        "read_only": spec.read_only,
        "user": spec.user,
        "team_network": None if spec.team_network is None else asdict(spec.team_network),
        "options": None if spec.options is None else [type(spec.options).__name__, _fields(spec.options)],
        **({"shares_gpus": True} if spec.shares_gpus else {}),  # earlier versions have no such key
    }
    return _digest(values, placed_files(spec))


def code_digest(command: Sequence[str], files: Mapping[str, Path]) -> str:
    """Return a digest of a job's command and of the contents of its files, which excludes its inputs."""
    return _digest({"command": list(command)}, sorted(files.items()))


def _digest(values: Mapping[str, object], files: Iterable[tuple[str, Path]]) -> str:
    digest = hashlib.blake2b(json.dumps(values, sort_keys=True).encode(), digest_size=16)
    for target, local in files:
        digest.update(f"\0{target}\0{local.stat().st_size}\0".encode(errors="surrogateescape"))
        with local.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def check_max_processes(number: object, field: str = "max_processes") -> None:
    """Raise unless ``number`` is a whole number of at least 1."""
    if not _is_integer(number, 1):
        raise InvalidInputError(field, number, "a whole number of at least 1")


def check_user(user: object, allow_root: object, field: str = "user") -> None:
    """Raise unless ``user`` is a numeric user, optionally with a group, and not root unless ``allow_root``."""
    match = _USER.fullmatch(user) if isinstance(user, str) else None
    numbers = [int(number) for number in match.groups() if number is not None] if match else []
    if not numbers or max(numbers) > _ID_MAX:
        raise InvalidInputError(field, user, f"'uid' or 'uid:gid', each a number of at most {_ID_MAX}")
    if numbers[0] == 0 and allow_root is not True:
        raise InvalidInputError(field, user, "an unprivileged user, for example '65532:65532', or allow_root=True")


def check_target(field: str, target: str) -> None:
    """Raise unless ``target`` is a path below the folder of a job's files or of its inputs."""
    path = PurePosixPath(target)
    if path.is_absolute() or ".." in path.parts or "\0" in target or (field == "files" and not path.parts):
        raise InvalidInputError(field, target, "a relative path without '..'")


def _fields(options: Any) -> dict[str, object]:
    return asdict(options)


def _is_integer(value: object, minimum: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= minimum


def check_labels(job: str, labels: Mapping[str, str] | None, wanted: Mapping[str, str] | None) -> None:
    """Raise ``JobLostError`` unless a job has the ``wanted`` labels: a stored job id may belong to another task.

    >>> check_labels("container 4f0c", {"paceline.task": "train"}, {"paceline.task": "evaluate"})
    Traceback (most recent call last):
    paceline.errors.JobLostError: container 4f0c belongs to another task: paceline.task is 'train', not 'evaluate'
    """
    for name, value in (wanted or {}).items():
        if (labels or {}).get(name) != value:
            raise JobLostError(f"{job} belongs to another task: {name} is {(labels or {}).get(name)!r}, not {value!r}")
