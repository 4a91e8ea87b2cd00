"""``RuntimeHarness``: what the contract needs to know about a runtime, and helpers that wait for a job's output."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from paceline.runtime import Job, JobSpec, Runtime

MIB = 1024**2
MAX_OUTPUT_BYTES = 1_000_000
"""Limit on the collected output of the runtime under test."""

_LONG_S = 300.0  # timeout for operations that take seconds on an idle machine
_POLL_S = 0.02

GATE = """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
def gate():
    print("at the gate", flush=True)
    signal.sigwait([signal.SIGUSR1])
"""
"""Code that precedes a job's code: gate() prints a line and waits until the test sends SIGUSR1."""

RESUMES = """
import os, pathlib, signal
saved = pathlib.Path(os.environ["PACELINE_CHECKPOINT"], "step")
print("resumed at", saved.read_text() if saved.exists() else "0", flush=True)
if saved.exists(): raise SystemExit(0)
saved.write_text("41")
print("saved", flush=True)
signal.pause()
"""
"""Code of a job that the test kills. When the job is restarted, it prints the step at which it resumes."""


WAITS = "import signal\nprint('up', flush=True)\nsignal.pause()\n"
LABELS = {"paceline.task": "train"}


class RuntimeHarness(ABC):
    """A runtime under test, and what the tests do with its jobs behind its back.

    Parameters
    ----------
    runtime:
        The runtime, which collects at most ``MAX_OUTPUT_BYTES`` of output.
    folder:
        Folder for the files of the jobs; empty, and kept until the test ends.

    Attributes
    ----------
    mark:
        Prefix of the names of this test's jobs, which no other test uses.
    """

    constructor: str
    """Python code that sets ``runtime`` to the same runtime in another process."""
    rejected: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Regular expressions of error messages, and the changes of a valid ``JobSpec`` that lead to them."""
    owns_its_folder: ClassVar[bool] = False
    """Whether a job's user may move the job's working folder."""

    def __init__(self, runtime: Runtime, folder: Path) -> None:
        self.runtime, self.folder = runtime, folder
        self.mark = f"test-{uuid.uuid4().hex[:12]}"

    def spec(self, code: str = "", **changes: Any) -> JobSpec:
        """Return the specification of a job that runs ``code`` on one device, with ``changes`` of its fields."""
        script = self.folder / "job.py"
        script.write_text(code)
        base = JobSpec(self.mark, ["python", "job.py"], 1.0, files={"job.py": script}, memory_bytes=256 * MIB)
        return dataclasses.replace(base, **changes)

    @abstractmethod
    def signal(self, job: Job, number: int) -> None:
        """Send a signal to the job's first process."""

    @abstractmethod
    def quota_of(self, job: Job) -> float:
        """Return the CPU quota that is in force for the job, in cores."""

    @abstractmethod
    def leftovers(self) -> list[str]:
        """Return descriptions of everything that the jobs of this test have left: jobs, folders, networks, ..."""

    @abstractmethod
    def remove_leftovers(self) -> None:
        """Remove all that ``leftovers`` finds."""


H = TypeVar("H", bound=RuntimeHarness)


@contextlib.contextmanager
def fail_on_leftovers(harness: H) -> Iterator[H]:
    """Remove what the test's jobs have left after the block, and fail the test if they have left anything."""
    yield harness
    leftovers_at_end = harness.leftovers()
    harness.remove_leftovers()
    assert not leftovers_at_end


def until(condition: Callable[[], Any], description: object = "") -> Any:
    """Wait until ``condition`` returns a true value, and return it. After five minutes, fail with ``description``."""
    give_up_s = time.monotonic() + _LONG_S
    while not (found := condition()):
        assert time.monotonic() < give_up_s, f"not within {_LONG_S:g} s: {description}"
        time.sleep(_POLL_S)
    return found


def wait_for_line(job: Job, wanted: str) -> list[str]:
    """Wait for an output line that contains ``wanted``, and return the lines up to and including that line."""
    lines: list[str] = []

    def line_was_printed() -> bool:
        ended = job.wait(_POLL_S)
        lines.extend(job.read_lines())
        printed = any(wanted in line for line in lines)
        assert printed or not ended, (lines[-5:], job.status())
        return printed

    until(line_was_printed, (wanted, lines))
    return lines


def read_to_end(job: Job) -> list[str]:
    """Read the job's output until the job ends, and return it."""
    lines: list[str] = []

    def has_ended() -> bool:
        ended = job.wait(0.1)
        lines.extend(job.read_lines())
        return ended

    until(has_ended, lines)
    return lines + job.read_lines()


def wait_for_quota(harness: RuntimeHarness, job: Job, cores: float) -> None:
    """Wait until the job's CPU quota is ``cores``."""
    until(lambda: abs(harness.quota_of(job) - cores) < 1e-6, cores)


def pass_gate(harness: RuntimeHarness, job: Job) -> list[str]:
    """Wait until the job is at its gate, open the gate, and return the output before the gate."""
    lines = wait_for_line(job, "at the gate")
    harness.signal(job, signal.SIGUSR1)
    return lines[:-1]


def spec_of(harness: RuntimeHarness, code: str, **changes: Any) -> JobSpec:
    """Return the specification of a job with ``LABELS``."""
    spec = harness.spec(code, **changes)
    return dataclasses.replace(spec, labels={**spec.labels, **LABELS})


def killed_after_checkpoint(harness: RuntimeHarness, **changes: Any) -> Job:
    """Return a job that was killed after it had saved a checkpoint."""
    job = harness.runtime.start(spec_of(harness, RESUMES, **changes))
    wait_for_line(job, "saved")
    job.stop(0)
    assert job.wait(60)
    return job
