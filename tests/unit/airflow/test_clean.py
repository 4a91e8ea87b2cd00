"""Which jobs ``paceline clean`` removes."""

from __future__ import annotations

import argparse
import time

import pytest

from paceline.airflow import _clean
from paceline.runtime import JobStatus, ProcessRuntime


def test_jobs_of_unknown_runs_are_orphans_on_request_when_they_are_old():
    def is_orphan(age_s: float, *options: str) -> bool:
        arguments = argparse.ArgumentParser()
        _clean.add_command(arguments.add_subparsers(), [], lambda _: None)
        status = JobStatus("running", started_s=time.time() - age_s)
        job = _clean.FoundJob(ProcessRuntime(), "job", {}, status, "unknown", None)
        return job.is_orphan(arguments.parse_args(["clean", *options]))

    assert not is_orphan(1e9)
    assert not is_orphan(6.9 * 86_400, "--unknown")
    assert is_orphan(7.1 * 86_400, "--unknown")
    assert is_orphan(3700, "--unknown", "--older-than", "1h")
    assert not is_orphan(3500, "--unknown", "--older-than", "1h")
    with pytest.raises(SystemExit):
        is_orphan(0, "--unknown", "--older-than", "soon")
