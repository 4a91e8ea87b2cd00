"""Files of a job: into its pod before it starts, and out of it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from paceline.errors import PacelineError
from paceline.runtime._sdk import sdk_files
from paceline.runtime.archive import Entry, tar_stream
from paceline.runtime.base import JOB_ENVIRONMENT, JobSpec
from paceline.runtime.checks import job_files
from paceline.runtime.kubernetes._cluster import Cluster
from paceline.runtime.kubernetes._pod import HOME, MOVED_HOSTS
from paceline.train.job import ENV_CHECKPOINT, ENV_CORES_PER_DEVICE, ENV_INPUT, ENV_MOVED_HOSTS, ENV_OUTPUT

_PYTHON = ("/bin/sh", "-c", 'exec "$(command -v python || command -v python3)" -c "$@"', "sh")
_BLOCK = 10_240  # the receiver reads whole blocks, and would wait for the rest of one
_RECEIVE = f"""
import os, sys, tarfile
tarfile.TarFile.extraction_filter = staticmethod(lambda member, path: member)
try:
    os.chdir({HOME!r})
    with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as archive:
        for member in archive:
            name = member.name
            if member.isfile():  # another process may be sending the same files, and the job may read them
                member.name += ".part"
            os.makedirs(os.path.dirname(name) or ".", exist_ok=True)  # the supervisor makes some of them meanwhile
            archive.extract(member)
            os.replace(member.name, name)
    print("received", flush=True)
except Exception as error:
    print(type(error).__name__, error, flush=True)
"""
_SEND = f"""
import os, sys, tarfile
os.chdir({HOME!r})
def add(path):
    try:
        archive.add(path, recursive=False)
        names = sorted(os.listdir(path)) if os.path.isdir(path) and not os.path.islink(path) else []
    except FileNotFoundError:  # the job has removed it meanwhile
        return
    for name in names:
        add(os.path.join(path, name))
with tarfile.open(fileobj=sys.stdout.buffer, mode="w|", format=tarfile.PAX_FORMAT) as archive:
    for path in sys.argv[1:]:
        add(path)
"""


def send_job(cluster: Cluster, pod: str, spec: JobSpec) -> None:
    """Copy the files of a job into its pod."""
    _receive(cluster, pod, tar_stream(_entries(spec)), "copy the job's files into the pod")


def send_checkpoint(cluster: Cluster, earlier: str, pod: str) -> None:
    """Copy the checkpoint of another pod into a pod."""
    _receive(cluster, pod, read_folder(cluster, earlier, "checkpoint"), "copy the checkpoint of the earlier job")


def copy_job(
    cluster: Cluster, first: str, pod: str, command: Sequence[str], environment: Mapping[str, str | None]
) -> None:
    """Copy the files with which the job of the pod ``first`` has started into another pod, for another command.

    ``environment``: variables to set, and with ``None`` to remove.
    """
    read = ["/bin/sh", "-c", f"cat {HOME}/state/job.json"]
    job = json.loads(b"".join(cluster.run("read the job's description", first, read)))
    chunks = cluster.run("read the job's files", first, [*_PYTHON, _SEND, "sdk", "input", *job["files"]])
    _receive(cluster, pod, chunks, "copy the job's files into the pod of a further device")
    changed = {**job["environment"], **environment}
    job["environment"] = {name: value for name, value in changed.items() if value is not None}
    job["command"] = list(command)
    description = Entry("state/job.json", json.dumps(job).encode(), 0o600)
    _receive(cluster, pod, tar_stream([description]), "describe the job of a further device")


def read_folder(cluster: Cluster, pod: str, folder: str) -> Iterator[bytes]:
    """Yield a tar archive of a folder below the job's home; an empty archive if there is none."""
    yield from cluster.run(f"read the job's {folder}", pod, [*_PYTHON, _SEND, folder])


def _receive(cluster: Cluster, pod: str, chunks: Iterable[bytes], request: str) -> None:
    with contextlib.closing(cluster.run(request, pod, [*_PYTHON, _RECEIVE], stdin=_padded(chunks))) as answers:
        answer = b""
        while not answer.endswith(b"\n"):
            answer += next(answers)
    if answer != b"received\n":
        raise PacelineError(f"could not {request}: {answer.decode(errors='replace').strip()}")


def _padded(chunks: Iterable[bytes]) -> Iterator[bytes]:
    size = 0
    for chunk in chunks:
        size += len(chunk)
        yield chunk
    yield bytes(-size % _BLOCK)


def _entries(spec: JobSpec) -> Iterator[Entry]:
    yield Entry("state/job.json", json.dumps(_description(spec)).encode(), 0o600)
    for path, content in sdk_files().items():
        yield Entry(f"sdk/{path}", content, 0o644)
    for target, local in job_files(spec):
        yield Entry(target, local, 0o755 if local.stat().st_mode & 0o111 else 0o644)


def _description(spec: JobSpec) -> dict[str, Any]:
    """Return what the supervisor has to know about the job. Its environment may have secrets: not in the manifest."""
    path = f"{HOME}/sdk" + (f":{spec.environment['PYTHONPATH']}" if spec.environment.get("PYTHONPATH") else "")
    environment = {
        **JOB_ENVIRONMENT,
        **{"HOME": f"{HOME}/work", "USER": "paceline", "LANG": "C.UTF-8"},
        **spec.environment,
        **{"PYTHONUNBUFFERED": "1", "PYTHONPATH": path, ENV_CORES_PER_DEVICE: str(spec.cores_per_device)},
        **{ENV_INPUT: f"{HOME}/input", ENV_OUTPUT: f"{HOME}/output", ENV_CHECKPOINT: f"{HOME}/checkpoint"},
        ENV_MOVED_HOSTS: f"{HOME}/{MOVED_HOSTS}",
    }
    return {
        "command": list(spec.command),
        "environment": environment,
        "file_bytes": spec.disk_bytes,
        "lease_s": spec.lease_s,
        "files": sorted({f"work/{PurePosixPath(target).parts[0]}" for target in spec.files}),
    }
