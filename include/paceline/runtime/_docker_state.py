"""Small files that ``DockerRuntime`` keeps in a container, such as the job's record, its lease and its share of GPUs.

They belong to root, and users of Airflow cannot reach them, so what they say about the owner of a job can be trusted.
"""

from __future__ import annotations

import contextlib
import io
import json
import tarfile
import time
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from paceline.errors import JobLostError
from paceline.runtime.archive import Entry, tar_stream
from paceline.runtime.base import LEASE_GRACE_S
from paceline.runtime.docker_errors import engine_call

if TYPE_CHECKING:
    from docker import APIClient

FOLDER = "/paceline/state"
CONTROL = f"{FOLDER}/control.json"
_RECORD, _STOPPED, _LEASE, _ENDED = "record.json", "stopped", "lease", "own/ended"
_SCRIPT = "lease.sh"
_MAX_BYTES = 64 * 1024
_MAX_CHUNKS = 16  # of at most 2 MiB, in case the file is replaced while it is read
_MAX_PERIOD_S = 30


def entries(home: str, lease_s: float | None, owner: Mapping[str, int], share: float | None = None) -> Iterator[Entry]:
    """Yield the folder and its first files, below ``home``. The job's user, ``owner``, can write only to ``own``.

    ``share``: the allocation of a job with a share of its GPUs.
    """
    folder = f"{home}/{PurePosixPath(FOLDER).name}"
    yield Entry(folder, None, 0o755)
    if share is not None:
        yield Entry(f"{folder}/{PurePosixPath(CONTROL).name}", _control(share), 0o644)
    if lease_s is not None:
        yield Entry(f"{folder}/own", None, 0o700, **owner)
        yield Entry(f"{folder}/{_SCRIPT}", Path(__file__).with_name("_lease.sh"), 0o755)
        yield Entry(f"{folder}/{_LEASE}", _lease(lease_s), 0o644)


def watched_command(command: list[str], lease_s: float | None) -> list[str]:
    """Return a command that also ends when its lease ends."""
    if lease_s is None:
        return command
    period_s = max(1, min(_MAX_PERIOD_S, round(lease_s / 20)))
    return ["/bin/sh", f"{FOLDER}/{_SCRIPT}", FOLDER, str(period_s), str(round(LEASE_GRACE_S)), *command]


def renew(client: APIClient, container: str, lease_s: float) -> None:
    """Write a new lease."""
    _write(client, container, _LEASE, _lease(lease_s))


def set_share(client: APIClient, container: str, devices: float) -> None:
    """Replace the allocation, which the job reads."""
    _write(client, container, PurePosixPath(CONTROL).name, _control(devices))


def save_record(client: APIClient, container: str, record: Mapping[str, Any]) -> None:
    """Replace the record."""
    _write(client, container, _RECORD, json.dumps(record).encode())


def load_record(client: APIClient, container: str) -> dict[str, Any] | None:
    """Return the record; ``None`` if the container or its record does not exist."""
    try:
        value = json.loads(_read(client, container, _RECORD) or b"null")
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def mark_stopped(client: APIClient, container: str, stopped: bool) -> None:
    """Record whether the container was stopped since its last start."""
    with contextlib.suppress(JobLostError):  # the caller finds out whether the container exists
        _write(client, container, _STOPPED, str(int(stopped)).encode())


def was_stopped(client: APIClient, container: str) -> bool:
    """Return whether the container was stopped since its last start, or its lease has ended."""
    return _read(client, container, _STOPPED) == b"1" or _read(client, container, _ENDED) is not None


def _control(devices: float) -> bytes:
    return json.dumps({"devices": devices}).encode()


def _lease(lease_s: float) -> bytes:
    return f"{time.time_ns()} {max(1, round(lease_s))}\n".encode()


def _write(client: APIClient, container: str, name: str, content: bytes) -> None:
    folder = PurePosixPath(FOLDER)
    # A container that an earlier version of Paceline started does not have the folder.
    entries = [Entry(folder.name, None, 0o755), Entry(f"{folder.name}/{name}", content, 0o644)]
    with engine_call(f"write the job's {name}"):
        client.put_archive(container, str(folder.parent), tar_stream(entries))


def _read(client: APIClient, container: str, name: str) -> bytes | None:
    """Return the content of a small file; ``None`` if the file or the container does not exist."""
    try:
        with engine_call(f"read the job's {name}"):
            chunks, details = client.get_archive(container, f"{FOLDER}/{name}")
            # The job chooses what is in ``own``. Only folders, links and devices have bits above the permissions.
            if details["size"] > _MAX_BYTES or details["mode"] > 0o777:
                chunks.close()
                return None
            archive = io.BytesIO(b"".join(islice(chunks, _MAX_CHUNKS)))
    except JobLostError:
        return None
    try:
        with tarfile.open(fileobj=archive) as files:
            member = files.next()
            content = files.extractfile(member) if member is not None and member.isreg() else None
            return None if content is None else content.read(_MAX_BYTES)
    except tarfile.TarError:
        return None
