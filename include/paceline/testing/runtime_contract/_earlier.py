"""The contract of jobs that outlive a process: another one finds, continues, ends and replaces them."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from paceline.errors import JobLostError, RuntimeUnavailableError

from .harness import (
    GATE,
    LABELS,
    RESUMES,
    WAITS,
    RuntimeHarness,
    killed_after_checkpoint,
    pass_gate,
    read_to_end,
    spec_of,
    wait_for_line,
)

OWNER = """
import signal
from pathlib import PosixPath
from paceline.runtime import JobSpec
{constructor}
job = runtime.start({spec!r})
print(job.id, flush=True)
signal.pause()
"""

STOPS = """
import os, pathlib, signal, sys
saved = pathlib.Path(os.environ["PACELINE_CHECKPOINT"], "stopped")
if saved.exists(): sys.exit()
def save(*_):
    saved.touch()
    sys.exit()
signal.signal(signal.SIGTERM, save)
print("up", flush=True)
while True: signal.pause()
"""

CHANGES_CHECKPOINT = """
import os, pathlib
os.chdir(os.environ["PACELINE_CHECKPOINT"])
print(*sorted(os.listdir()), flush=True)
print(pathlib.Path("step").read_text(), pathlib.Path("deep/more").read_text(), flush=True)
for name in ("step", "deep/more"): pathlib.Path(name).unlink()
pathlib.Path("deep").rmdir()
"""

WAITS_FOR_LEASE = """
import os, signal
try:
    print("child", os.waitpid(-1, os.WNOHANG), flush=True)
except ChildProcessError:
    print("no children", flush=True)
while True: signal.pause()
"""


class EarlierJobs:
    """Other processes find a job, continue, end and replace it."""

    def test_restarted_job_has_its_checkpoint_and_continues_its_output(self, harness: RuntimeHarness) -> None:
        job = harness.runtime.start(harness.spec(RESUMES))
        lines = wait_for_line(job, "saved")
        harness.signal(job, signal.SIGKILL)
        lines += read_to_end(job)
        assert (job.status().exit_code, job.status().reason) == (137, "killed (SIGKILL)")
        job.restart()
        lines += read_to_end(job)
        assert lines == ["resumed at 0", "saved", "resumed at 41"]
        assert job.status().exit_code == 0
        job.remove()

    def test_start_reattaches_to_a_job_with_the_same_spec_and_rejects_a_different_spec(
        self, harness: RuntimeHarness
    ) -> None:
        first = harness.runtime.start(harness.spec(WAITS))
        wait_for_line(first, "up")
        again = harness.runtime.start(harness.spec(WAITS, devices=0.5))
        assert again.id == first.id
        wait_for_line(again, "up")
        again.close()
        with pytest.raises(RuntimeUnavailableError, match="is running another job named"):
            harness.runtime.start(harness.spec("print('other')"))
        first.stop(0.0)
        other = harness.runtime.start(harness.spec("print('other')"))
        assert read_to_end(other) == ["other"]
        first.close()
        other.remove()

    def test_job_survives_its_owner_and_another_process_reattaches(self, harness: RuntimeHarness) -> None:
        wanted = harness.spec(GATE + "print('before', flush=True); gate(); print('after')")
        code = OWNER.format(constructor=harness.constructor, spec=wanted)
        with subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True
        ) as owner:
            assert owner.stdout is not None
            job_id = owner.stdout.readline().strip()
            os.killpg(owner.pid, signal.SIGKILL)  # as when a worker process is killed
        job = harness.runtime.reattach(job_id)
        assert job.status().state == "running"
        with pytest.raises(JobLostError, match=r"belongs to another task: paceline.task is None, not 'evaluate'"):
            harness.runtime.reattach(job_id, {"paceline.task": "evaluate"})
        again = harness.runtime.start(wanted)
        assert again.id == job_id
        again.close()
        job.resize(0.9)
        assert pass_gate(harness, job) + read_to_end(job) == ["before", "after"]
        assert job.status().exit_code == 0
        job.remove()

    def test_reattach_to_an_ended_job_reads_its_last_report_first(self, harness: RuntimeHarness) -> None:
        job = harness.runtime.start(
            harness.spec("print('the last report')\nfor number in range(2000):\n    print('#' * 100)")
        )
        assert job.wait(60)
        job.close()
        again = harness.runtime.reattach(job.id)
        assert read_to_end(again)[0] == "the last report"
        again.remove()

    def test_job_is_found_by_its_name_and_labels(self, harness: RuntimeHarness) -> None:
        spec = spec_of(harness, WAITS)
        assert harness.runtime.find_job(spec.name, LABELS) is None
        job = harness.runtime.start(spec)
        found = harness.runtime.find_job(spec.name, LABELS)
        assert found is not None
        assert found.id == job.id
        found.close()
        assert harness.runtime.find_job(spec.name, {"paceline.task": "evaluate"}) is None
        assert harness.runtime.find_job(f"{spec.name}-2", LABELS) is None
        job.remove()

    def test_jobs_are_removed_by_their_labels(self, harness: RuntimeHarness) -> None:
        jobs = []
        for number in ("1", "2"):
            spec = spec_of(harness, WAITS, name=f"{harness.mark}-{number}")
            labels = {**spec.labels, "paceline.mark": f"{harness.mark}-{number}"}
            jobs.append(harness.runtime.start(dataclasses.replace(spec, labels=labels)))
        harness.runtime.remove_all({**LABELS, "paceline.mark": f"{harness.mark}-1"})
        assert {name for name, _ in harness.runtime.jobs()} & {job.id for job in jobs} == {jobs[1].id}
        assert jobs[1].status().state == "running"
        jobs[1].remove()

    def test_record_is_kept_with_the_job_until_its_removal(self, harness: RuntimeHarness) -> None:
        job = harness.runtime.start(spec_of(harness, RESUMES))
        assert job.load_record() is None
        wait_for_line(job, "saved")
        job.save_record({"owner": "a", "devices": 1.5})
        job.save_record({"owner": "b"})
        assert harness.runtime.reattach(job.id).load_record() == {"owner": "b"}
        job.stop(0)
        job.restart()
        read_to_end(job)
        assert job.load_record() == {"owner": "b"}
        job.save_record({"owner": "c"})
        assert job.load_record() == {"owner": "c"}
        job.remove()
        assert job.load_record() is None

    def test_stopped_job_is_told_apart_from_a_finished_one(self, harness: RuntimeHarness) -> None:
        job = harness.runtime.start(spec_of(harness, STOPS))
        wait_for_line(job, "up")
        job.stop(60)
        status = harness.runtime.reattach(job.id).status()
        assert (status.state, status.exit_code, status.stopped) == ("exited", 0, True)
        job.restart()
        assert job.wait(60)
        job.stop()  # of an ended job
        assert (job.status().exit_code, job.status().stopped) == (0, False)
        job.remove()

    def test_job_whose_lease_is_not_renewed_ends_after_a_checkpoint(self, harness: RuntimeHarness) -> None:
        job = harness.runtime.start(spec_of(harness, STOPS, lease_s=1.0))
        assert job.wait(120)
        assert (job.status().state, job.status().exit_code, job.status().stopped) == ("exited", 0, True)
        job.restart()
        assert job.wait(60)
        assert (job.status().exit_code, job.status().stopped) == (0, False)
        job.remove()

    def test_renewed_lease_replaces_the_earlier_one(self, harness: RuntimeHarness) -> None:
        job = harness.runtime.start(spec_of(harness, WAITS_FOR_LEASE, lease_s=200.0))
        wait_for_line(job, "no children")  # the code may wait for all its children
        job.renew(1.0)
        assert job.wait(120)  # less than the first lease; a runtime may look for a new one only every 10 s
        assert (job.status().exit_code, job.status().stopped) == (143, True)
        job.remove()

    def test_changed_spec_is_detected_apart_from_the_allocation(self, harness: RuntimeHarness) -> None:
        spec = spec_of(harness, WAITS)
        job = harness.runtime.start(spec)
        assert harness.runtime.has_same_spec(job, dataclasses.replace(spec, devices=0.3))
        assert not harness.runtime.has_same_spec(job, dataclasses.replace(spec, environment={"TRY": "2"}))
        assert not harness.runtime.has_same_spec(job, spec_of(harness, WAITS + "#"))
        job.remove()

    @pytest.mark.parametrize(
        "changes",
        [
            {"environment": {"TRY": "2"}},
            {"user": "1234:5678"},
            {"read_only": True, "lease_s": 9e4},
            {"name": "renamed"},
        ],
    )
    def test_replaced_job_continues_from_the_checkpoint(self, harness: RuntimeHarness, changes: dict[str, Any]) -> None:
        if "name" in changes:
            changes = {"name": f"{harness.mark}-2"}
        job = killed_after_checkpoint(harness)
        spec = spec_of(harness, RESUMES, **changes)
        new = harness.runtime.replace(job, spec)
        assert read_to_end(new) == ["resumed at 41"]
        assert new.status().exit_code == 0
        assert [name for name, _ in harness.runtime.jobs() if name == job.id and job.id != new.id] == []
        found = harness.runtime.find_job(spec.name, LABELS)
        assert found is not None
        assert found.id == new.id
        found.close()
        new.remove()
        assert harness.leftovers() == []

    @pytest.mark.parametrize("changes", [{}, {"user": "1234:5678", "read_only": True}])
    def test_new_job_resumes_from_a_copy_of_the_checkpoint(
        self, harness: RuntimeHarness, tmp_path: Path, changes: dict[str, Any]
    ) -> None:
        job = harness.runtime.start(harness.spec(RESUMES))
        wait_for_line(job, "saved")
        (tmp_path / "copy").mkdir()
        assert job.collect(tmp_path / "copy", "checkpoint") == ["step"]  # while the job runs
        job.remove()
        (tmp_path / "copy" / "deep").mkdir()
        (tmp_path / "copy" / "deep" / "more").write_text("more")
        spec = harness.spec(CHANGES_CHECKPOINT, checkpoint=tmp_path / "copy", **changes)
        new = harness.runtime.start(spec)
        assert read_to_end(new) == ["deep step", "41 more"]
        assert harness.runtime.has_same_spec(new, dataclasses.replace(spec, checkpoint=None))
        new.remove()
