"""The GPUs of a machine or engine: their ids, the choice of a job's GPUs, and the locks of local jobs.

Called by the runtimes and by the launcher of a local job. A GPU belongs to at most one job at a time, or to several
jobs with parts of its time, which are 1 at most together.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.errors import InvalidInputError, RuntimeUnavailableError

EXIT_UNAVAILABLE = 75  # exit code of a launcher that finds too few free GPUs: a later start may succeed
_FOLDER = "gpus"
_TURN, _PARTS = "turn-", "parts-"


def choose(ids: Sequence[str], used: Collection[str], count: int, avoid: Collection[str] = ()) -> list[str]:
    """Return ``count`` free GPUs, the first in the order of ``ids``; those in ``avoid`` only if no others are free.

    Raises
    ------
    InvalidInputError
        There are fewer than ``count`` GPUs.
    RuntimeUnavailableError
        Fewer than ``count`` GPUs are free now.

    Examples
    --------
    >>> choose(["0", "1", "2", "3"], used={"0"}, count=2, avoid={"1"})
    ['2', '3']
    >>> choose(["0", "1"], used={"0"}, count=2)
    Traceback (most recent call last):
    paceline.errors.RuntimeUnavailableError: gpus: got 2, expected at most 1, because other jobs use GPU 0; free: 1
    """
    if count > len(ids):
        raise InvalidInputError("gpus", count, f"at most {len(ids)}, the number of GPUs ({', '.join(ids) or 'none'})")
    free = [gpu for gpu in ids if gpu not in used]
    if count > len(free):
        taken = ", ".join(gpu for gpu in ids if gpu in used)
        raise RuntimeUnavailableError(
            f"gpus: got {count}, expected at most {len(free)}, because other jobs use GPU {taken}; "
            f"free: {', '.join(free) or 'none'}"
        )
    return sorted(free, key=lambda gpu: gpu in avoid)[:count]


def choose_part(
    ids: Sequence[str], used: Collection[str], parts: Mapping[str, float], part: float, avoid: Collection[str] = ()
) -> str:
    """Return the GPU of whose time ``part`` is free, and the least remains: the other GPUs stay free for whole jobs.

    Parameters
    ----------
    ids, avoid:
        As for :func:`choose`.
    used:
        GPUs that belong to one job.
    parts:
        Part of each GPU's time that other jobs have; missing for 0.

    Raises
    ------
    InvalidInputError
        There are no GPUs.
    RuntimeUnavailableError
        No GPU has so much free time now.

    Examples
    --------
    >>> choose_part(["0", "1", "2"], used={"0"}, parts={"2": 0.5}, part=0.5)
    '2'
    >>> choose_part(["0", "1"], used={"0"}, parts={"1": 0.75}, part=0.5)
    Traceback (most recent call last):
    paceline.errors.RuntimeUnavailableError: gpus: got 0.5, expected at most 0.25, because other jobs use the GPUs; \
free: 0.25 of GPU 1
    """
    if not ids:
        raise InvalidInputError("gpus", part, "0, because there are no GPUs")
    free = {gpu: round(1 - parts.get(gpu, 0.0), 6) for gpu in ids if gpu not in used}
    fitting = [gpu for gpu in free if round(part, 6) <= free[gpu]]  # so that three jobs with a third each fit
    if not fitting:
        left = ", ".join(f"{amount:g} of GPU {gpu}" for gpu, amount in free.items() if amount > 0)
        raise RuntimeUnavailableError(
            f"gpus: got {part:g}, expected at most {max(free.values(), default=0):g}, because other jobs use the GPUs; "
            f"free: {left or 'none'}"
        )
    return min(fitting, key=lambda gpu: (gpu in avoid, free[gpu]))


def of_machine(dev: Path = Path("/dev")) -> list[str]:
    """Return the indices of this machine's NVIDIA GPUs, one for each device file in ``dev``."""
    return [str(index) for index, _ in enumerate(dev.glob("nvidia[0-9]*"))]


def of_process(environ: Mapping[str, str] = os.environ, dev: Path = Path("/dev")) -> list[str]:
    """Return the GPUs that this process may use: those in ``CUDA_VISIBLE_DEVICES``, else all of the machine.

    >>> of_process({"CUDA_VISIBLE_DEVICES": "2,3"}), of_process({"CUDA_VISIBLE_DEVICES": ""})
    (['2', '3'], [])
    """
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return of_machine(dev)
    return [gpu for gpu in dict.fromkeys(map(str.strip, visible.split(","))) if gpu not in ("", "-1")]


def reported_by(info: Mapping[str, Any]) -> list[str]:
    """Return the GPUs in a Docker engine's answer to ``docker info``; an empty list if it reports none.

    An engine reports its generic resources, and since version 28.2 the devices of the Container Device Interface.

    >>> reported_by({"DiscoveredDevices": [{"ID": f"nvidia.com/gpu={name}"} for name in ("0", "1", "GPU-5b", "all")]})
    ['0', '1']
    """
    resources = [resource.get("NamedResourceSpec") or {} for resource in info.get("GenericResources") or ()]
    declared = [str(one["Value"]) for one in resources if "gpu" in str(one.get("Kind")).lower()]
    prefix = "nvidia.com/gpu="
    names = [str(device["ID"]) for device in info.get("DiscoveredDevices") or ()]
    devices = [name.removeprefix(prefix) for name in names if name.startswith(prefix) and name != f"{prefix}all"]
    return declared or [name for name in devices if name.isdigit()] or devices  # each GPU has an index and a UUID


def claim(ids: Sequence[str], amount: float, root: Path) -> list[str]:
    """Lock free GPUs, or below 1 a part of one, for this process and its forks, and return their ids.

    The kernel releases the locks when the last of these processes has ended, however it ends. Raises the errors of
    :func:`choose` and :func:`choose_part`.
    """
    folder = root / _FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    one_at_a_time = _lock(folder / "choice", fcntl.LOCK_EX)
    locks: dict[str, int] = {}
    chosen: list[str] = []
    operation = fcntl.LOCK_EX if amount >= 1 else fcntl.LOCK_SH
    try:
        for gpu in ids:
            try:
                locks[gpu] = _lock(folder / f"gpu-{_file_name(gpu)}", operation | fcntl.LOCK_NB)
            except BlockingIOError:
                continue  # another job holds this GPU
        used = set(ids) - set(locks)
        if amount >= 1:
            chosen = choose(ids, used, int(amount))
        else:
            parts = {gpu: _parts_in_use(folder / f"{_PARTS}{_file_name(gpu)}") for gpu in ids}
            chosen = [choose_part(ids, used, parts, amount)]
            _hold_part(folder / f"{_PARTS}{_file_name(chosen[0])}", amount)
        return chosen
    finally:
        for gpu, lock in locks.items():
            if gpu not in chosen:
                os.close(lock)
        os.close(one_at_a_time)


def turns(ids: Sequence[str], root: Path) -> list[str]:
    """Return the path of a file for each GPU, which the jobs that share it lock in turn."""
    paths = [root / _FOLDER / f"{_TURN}{_file_name(gpu)}" for gpu in ids]
    for path in paths:
        path.touch(mode=0o600)
    return [str(path) for path in paths]


def _parts_in_use(folder: Path) -> float:
    """Return the sum of the parts of a GPU whose jobs run. Each locks a file with its part; remove the other files."""
    total = 0.0
    for path in folder.iterdir() if folder.is_dir() else ():
        try:
            os.close(_lock(path, fcntl.LOCK_EX | fcntl.LOCK_NB))
            path.unlink()
        except BlockingIOError:
            total += float(path.read_text())
    return total


def _hold_part(folder: Path, part: float) -> None:
    """Write and lock a file with a part of a GPU, until this process and its forks have ended."""
    folder.mkdir(mode=0o700, exist_ok=True)
    handle, _ = tempfile.mkstemp(dir=folder)
    os.write(handle, str(part).encode())
    fcntl.flock(handle, fcntl.LOCK_EX)


def _file_name(gpu: str) -> str:
    return gpu.replace("/", "_")


def _lock(path: Path, operation: int) -> int:
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, operation)
    except BaseException:
        os.close(handle)
        raise
    return handle
