"""How a process finds the job of an earlier one, what is stored with a job, and how a job without a process ends.

The tests run with a real engine and with local processes.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.integration.jobs import ContainerHarness, Harness, ProcessHarness

from paceline.errors import InvalidInputError, JobLostError, RuntimeUnavailableError
from paceline.runtime import DockerRuntime, Job
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
