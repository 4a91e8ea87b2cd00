"""How a process finds the job of an earlier one, what is stored with a job, and how a job without a process ends.

The tests run with a real engine and with local processes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.integration.jobs import ContainerHarness, Harness, ProcessHarness
from tests.waiting import LONG_S

from paceline.errors import InvalidInputError, JobLostError, PacelineError, RuntimeUnavailableError
from paceline.runtime import DockerRuntime, Job, JobSpec, checks
from paceline.runtime.scratch import Scratch, read_json, write_json
from paceline.testing.runtime_contract.harness import (
    LABELS,
    RESUMES,
    WAITS,
    fail_on_leftovers,
    killed_after_checkpoint,
    read_to_end,
    spec_of,
)

if TYPE_CHECKING:
    import docker


def test_replacement_that_cannot_start_keeps_the_checkpoint(harness: Harness, monkeypatch: Any) -> None:
    job = killed_after_checkpoint(harness)
    spec = spec_of(harness, RESUMES, environment={"TRY": "2"})
    missing = dataclasses.replace(spec, inputs={"data": Path("/nowhere")})
    with pytest.raises(Exception, match="inputs"):
        harness.runtime.replace(job, missing)
    with monkeypatch.context() as patch:  # the process dies after the earlier job has its other name
        patch.setattr(harness.runtime, "_start_new", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            harness.runtime.replace(job, spec)
    found = harness.runtime.find_job(spec.name, LABELS)
    assert found is not None
    new = harness.runtime.replace(found, spec)
    assert read_to_end(new) == ["resumed at 41"]
    found.close()
    new.remove()
    assert harness.leftovers() == []


def test_replacement_is_completed_if_the_earlier_job_could_not_be_removed(harness: Harness, monkeypatch: Any) -> None:
    job = killed_after_checkpoint(harness)
    spec = spec_of(harness, RESUMES, environment={"TRY": "2"})

    def fail(self: Job) -> None:
        raise RuntimeUnavailableError("no engine")

    with monkeypatch.context() as patch:
        patch.setattr(type(job), "remove", fail)
        with pytest.raises(RuntimeUnavailableError):
            harness.runtime.replace(job, spec)
    new = harness.runtime.replace(job, spec)
    assert read_to_end(new) == ["resumed at 41"]
    new.remove()
    assert harness.leftovers() == []


# --- jobs that have not started -------------------------------------------------------------------------------------

KILLED_AT_START = """
import os, signal, sys
from pathlib import PosixPath
from paceline.runtime import JobSpec
{constructor}
def files(spec):
    os.kill(os.getpid(), signal.SIGKILL)
    yield
for module in sys.modules.values():
    if "job_files" in vars(module):
        module.job_files = files
runtime.start({spec!r})
"""


def listed(harness: Harness, spec: JobSpec) -> list[str]:
    """Return the ids of the jobs with the labels of a specification."""
    return [job_id for job_id, labels in harness.runtime.jobs() if spec.labels.items() <= labels.items()]


def test_job_of_a_process_killed_while_it_copied_the_files_is_found_and_removed(harness: Harness) -> None:
    spec = spec_of(harness, WAITS)
    code = KILLED_AT_START.format(constructor=harness.constructor, spec=spec)
    process = subprocess.run([sys.executable, "-c", code], check=False)
    assert process.returncode == -signal.SIGKILL
    (job_id,) = listed(harness, spec)
    assert harness.runtime.find_job(spec.name, LABELS) is None
    job = harness.runtime.reattach(job_id, LABELS)
    assert job.status().state != "exited"
    job.remove()
    assert harness.leftovers() == []


def test_job_is_removed_while_another_thread_copies_its_files(
    harness: Harness, monkeypatch: Any, tmp_path: Path
) -> None:
    is_copying, may_copy = threading.Event(), threading.Event()

    def files(spec: JobSpec) -> Iterator[tuple[str, Path]]:
        is_copying.set()
        assert may_copy.wait(LONG_S)
        yield from checks.job_files(spec)

    for name in [name for name, one in sys.modules.items() if "job_files" in vars(one) and one is not checks]:
        if name.startswith("paceline.runtime"):
            monkeypatch.setattr(f"{name}.job_files", files)
    (tmp_path / "data").mkdir()
    for name in ("a", "b"):
        (tmp_path / "data" / name).touch()
    spec = spec_of(harness, WAITS, inputs={"data": tmp_path / "data"})
    with ThreadPoolExecutor() as threads:
        start = threads.submit(harness.runtime.start, spec)
        assert is_copying.wait(LONG_S)
        removal = threads.submit(harness.runtime.remove_all, spec.labels)
        if isinstance(harness, ContainerHarness):  # the engine removes the container once it has the files
            may_copy.set()
            with contextlib.suppress(PacelineError):  # the container may start before the engine removes it
                start.result(LONG_S).close()
        removal.result(LONG_S)
        may_copy.set()
        if isinstance(harness, ProcessHarness):
            with pytest.raises(JobLostError, match="was removed before its start"):
                start.result(LONG_S)
    assert listed(harness, spec) == []


# --- what users of Airflow, or other users of the machine, may write ------------------------------------------------


@pytest.fixture
def processes(process_runtime_root: Path, tmp_path: Path) -> ProcessHarness:
    return ProcessHarness(process_runtime_root, "signal", tmp_path)


def test_folder_outside_the_root_is_no_job(processes: ProcessHarness, tmp_path: Path) -> None:
    job = processes.runtime.start(spec_of(processes, WAITS))
    copy = tmp_path / "job"
    shutil.copytree(job.id, copy, ignore=shutil.ignore_patterns("tmp"))
    root = processes.runtime.root
    (root / "link").symlink_to(copy)
    for name in ("job.json", "state.json"):  # the folder above the root, in which other users may write
        shutil.copy(copy / name, root.parent)
    paths = [copy, f"{root}/../{copy.name}", f"{root}/link", f"{root}/..", root, "", ".", "/", "a\0b"]
    for path in map(str, paths):
        with pytest.raises(JobLostError, match="there is no job in"):
            processes.runtime.reattach(path)
    assert [path for path, _ in processes.runtime.jobs()] == [job.id]
    (root / "link").unlink()
    job.remove()
    assert copy.exists()


def test_root_that_another_user_can_change_is_rejected(tmp_path: Path) -> None:
    """Another user may have created the default root, or a link in its place."""
    target = tmp_path / "target"
    target.mkdir()
    (tmp_path / "link").symlink_to(target)
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    for name in ("link", "open"):
        harness = ProcessHarness(tmp_path / name, "signal", tmp_path)
        with pytest.raises(InvalidInputError, match="a folder, not a link, that this user owns and only this user can"):
            harness.runtime.start(spec_of(harness, WAITS))


HIDES_ITS_END = """
import os, pathlib
own = pathlib.Path("/paceline/state/own/ended")
own.mkdir()
with open(own / "large", "wb") as file: file.truncate(3 * 2**30)
"""


@pytest.mark.docker
def test_worker_reads_only_a_small_file_of_the_job(
    docker_client: docker.APIClient, docker_host: str, trainer_image: str, tmp_path: Path, monkeypatch: Any
) -> None:
    harness = ContainerHarness(docker_client, docker_host, trainer_image, tmp_path)
    with fail_on_leftovers(harness):
        job = harness.runtime.start(spec_of(harness, HIDES_ITS_END, lease_s=9e4))
        assert job.wait(60)
        read = 0
        get_archive = docker_client.get_archive

        def count(*arguments: Any) -> Any:
            chunks, details = get_archive(*arguments)

            def counted() -> Iterator[bytes]:
                nonlocal read
                for chunk in chunks:
                    read += len(chunk)
                    yield chunk

            return counted(), details

        monkeypatch.setattr(docker_client, "get_archive", count)
        assert (job.status().exit_code, job.status().stopped) == (0, False)
        assert read < 2**20
        job.remove()


@pytest.mark.docker
@pytest.mark.parametrize("job_id", ["", ".", "..", "../images", "../images/paceline-trainer:latest", "x", "ab" * 40])
def test_stored_id_that_is_no_container_is_no_job(docker_client: docker.APIClient, job_id: str) -> None:
    with pytest.raises(JobLostError, match="is no id of a container"):
        DockerRuntime(docker_client).reattach(job_id, LABELS)


def test_forged_cgroup_of_a_job_is_not_removed(processes: ProcessHarness, tmp_path: Path) -> None:
    """The code of a local job can write to its own folder, and name any folder there as its control group."""
    job = processes.runtime.start(spec_of(processes, "print('done')"))
    assert job.wait(60)
    forged = tmp_path / f"{Path(job.id).name}-1"
    forged.mkdir()
    scratch = Scratch(Path(job.id))
    state = read_json(scratch.state) or {}
    group = {"cpu": str(forged), "memory": None, "account": None, "processes": None, "unified": True}
    write_json(scratch.state, {**state, "cgroup": group})
    job.remove()
    assert forged.exists()
