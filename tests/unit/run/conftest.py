"""Fixtures with a simulated job and a simulated clock, which advances when the control loop waits."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import fields
from datetime import datetime, timezone
from functools import partial
from typing import Any

import pytest

from paceline.contract import RunTotals
from paceline.control import DeadlineController, Limits
from paceline.errors import JobLostError, RuntimeUnavailableError
from paceline.run import Handover, JsonText, MemoryState, PaceLoop, Surroundings
from paceline.run import _handle as handle_module
from paceline.run import _stopping as stopping_module
from paceline.run.settings import Settings
from paceline.runtime import JobStatus, Usage
from paceline.train.progress import Progress

LIMITS = Limits(0.1, 2.0)
_SCALING, _TAIL_S = 0.9, 0.5


class ProcessKilled(Exception):
    """Raised to end the control loop, as if the controlling process were killed."""


def kill_process():
    raise ProcessKilled


class SimulatedClock:
    def __init__(self, now_s: float = 1_900_000_000.0) -> None:
        self.now_s = now_s

    def now(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


class SimulatedJob:
    """A simulated job of equal batches that takes ``core_s`` s on one core, with the speed-up ``devices**0.9``."""

    has_engine = True

    def __init__(
        self, clock: SimulatedClock, *, core_s: float, batches: int = 3000, start_up_s: float = 2.0, noise: float = 0.0
    ) -> None:
        self.clock, self.batches, self.devices, self.unit = clock, batches, 1.0, "batches"
        self._work_s, self._noise, self._random = core_s, noise, random.Random(0)
        self._began_s = clock.now()
        self._first_batch_s = self._began_s + start_up_s
        self._exit_code = 0
        self._done = 0.0
        self._lines: list[str] = []
        self._read = 0
        self._last_line_s = float("-inf")
        self._finished_s: float | None = None
        self.outage_between: tuple[float, float] = (0.0, 0.0)
        self.gone = False
        self.clock_error_s = 0.0  # offset of the clocks of the engine and the job
        self.resizes: list[tuple[float, float]] = []
        self.restarted = self.stopped = 0
        self.saved_share = 0.8  # of its batches: the last checkpoint does not contain recent ones
        self.device_lost = False  # whether its end is the loss of a device
        self.ends_at: int | None = None  # batches after which a metric ends training, before all ``batches``
        self.loads_after_restart = self.is_loading = False  # the start-up after a restart ends with ``finish_loading``
        self.actions: list[tuple[float, Callable[[], None]]] = []
        self.gets = float("inf")  # devices that a busy host gives it
        self._used_s = 0.0
        self.reports_gpu_time = False  # as a job with a share of the time of its GPU
        self.reports_every_s = 0.2
        self.processes: int | None = None  # of data-parallel training

    @property
    def elapsed_s(self) -> float:
        return self.clock.now() - self._began_s

    def append_lines(self, *lines: str) -> None:
        self._lines.extend(lines)

    def read_lines(self) -> list[str]:
        if self._in_outage():
            return []
        lines, self._read = self._lines[self._read :], len(self._lines)
        return lines

    def replay_lines(self) -> None:
        """Read all lines again, like a process that takes over the job."""
        self._read = 0

    def wait(self, timeout_s: float) -> bool:
        end_s = self.clock.now() + timeout_s
        while self.clock.now() < end_s - 1e-9:
            if self._has_ended() and not self._in_outage():
                return True
            self._advance(min(0.05, end_s - self.clock.now()))
        if self._in_outage():
            raise RuntimeUnavailableError("no engine")
        return self._has_ended()

    def resize(self, devices: float) -> None:
        if self._in_outage():
            raise RuntimeUnavailableError("no engine")
        if self._has_ended() and not self.stopped > self.restarted:  # a stopped job may be resized before its restart
            raise JobLostError("not running")
        self.devices = devices
        self.resizes.append((self.elapsed_s, devices))

    def status(self) -> JobStatus:
        if self._in_outage():
            raise RuntimeUnavailableError("no engine")
        if self.gone:
            return JobStatus("gone")
        if self._finished_s is not None and self.clock.now() >= self._finished_s:
            began_s, finished_s = (moment_s + self.clock_error_s for moment_s in (self._began_s, self._finished_s))
            is_stopped = self.stopped > self.restarted
            return JobStatus(
                "exited", self._exit_code, began_s, finished_s, stopped=is_stopped, device_lost=self.device_lost
            )
        return JobStatus("running", started_s=self._began_s + self.clock_error_s)

    def usage(self) -> Usage:
        """Return the usage on a busy host; elsewhere, it is not measured."""
        return Usage(self._used_s, 0, self.elapsed_s) if self.gets < float("inf") else Usage(0.0, 0, 0.0)

    def continue_from(self, other: SimulatedJob) -> None:
        """Resume from the checkpoint of another job."""
        self._done = float(int(other._done * 0.8))

    def restart(self) -> None:
        self.restarted += 1
        self.device_lost = False
        self._finished_s = None
        self._exit_code = 0
        self._done = float(int(self._done * self.saved_share))
        self.is_loading = self.loads_after_restart
        if not self.is_loading:
            self._report("start")

    def finish_loading(self) -> None:
        """End the start-up of a restarted job that ``loads_after_restart``."""
        self.is_loading = False
        self._report("start")

    def stop(self, grace_s: float = 5.0) -> None:
        if self._in_outage():
            raise RuntimeUnavailableError("no engine")
        if not self._has_ended():
            self.stopped += 1
            self.kill(143)

    def renew(self, lease_s: float) -> None:
        """This job has no lease."""

    def run_due_actions(self) -> None:
        for due_s, action in list(self.actions):
            if self.elapsed_s >= due_s:
                self.actions.remove((due_s, action))
                action()

    def kill(self, exit_code: int = 137) -> None:
        self._finished_s, self._exit_code = self.clock.now(), exit_code

    def remove_from_engine(self) -> None:
        self.gone = True

    def _in_outage(self) -> bool:
        return self.outage_between[0] <= self.elapsed_s < self.outage_between[1]

    def _has_ended(self) -> bool:
        return self.gone or (self._finished_s is not None and self.clock.now() >= self._finished_s)

    def _advance(self, dt_s: float) -> None:
        before_s = self.clock.now()
        self.clock.sleep(dt_s)
        self.run_due_actions()
        is_training = before_s >= self._first_batch_s and not self.is_loading
        if self._finished_s is not None or not is_training or self._done >= self.batches:
            return
        if self._last_line_s == float("-inf"):
            self._report("start")
        in_use = min(self.devices, self.gets)
        self._used_s += in_use * dt_s
        speed = self.batches / self._work_s * in_use**_SCALING
        self._done += speed * dt_s * (1 + self._random.gauss(0, self._noise) if self._noise else 1)
        if self._done >= (self.ends_at or self.batches):
            self._done = self.batches = self.ends_at or self.batches
            self._finished_s = self.clock.now() + _TAIL_S
            self._report("finish")
        elif self.clock.now() - self._last_line_s >= self.reports_every_s:
            self._report("progress")

    def _report(self, event: str) -> None:
        self._last_line_s = self.clock.now()
        more = {"wall_s": self.clock.now() + self.clock_error_s, "monotonic_s": self.elapsed_s}
        more["may_end_early"] = self.ends_at is not None
        if self.unit != "batches":
            more["unit"] = self.unit
        if self.processes is not None:
            more["devices_in_force"] = self.processes
        if self.reports_gpu_time:
            more["gpu_s"] = self._used_s if self.devices < 1 else None
        self._lines.append(Progress(int(self._done), self.batches, event=event, **more).to_line())


class InstantExchange:
    """A job's live state without a thread. Posted values are visible immediately."""

    round_ms_mean = 0.0

    def __init__(self, state: MemoryState, job: SimulatedJob) -> None:
        self.state, self._job = state, job
        self.samples: list[dict[str, Any]] = []

    def post(self, values: dict[str, Any]) -> None:
        self.state.update(JsonText.values_of(values))
        if "pace" in values:
            self.samples.append(values["pace"])

    def newest(self) -> dict[str, Any]:
        self._job.run_due_actions()
        return {key: self.state.get(key) for key in ("deadline", "ceiling")}


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.fixture
def origin(clock: SimulatedClock) -> datetime:
    return datetime.fromtimestamp(clock.now(), tz=timezone.utc)


@pytest.fixture
def make_job(clock: SimulatedClock) -> Callable[..., SimulatedJob]:
    return partial(SimulatedJob, clock)


@pytest.fixture
def run(clock, origin, caplog):
    """Return a function that controls a job until its end. ``later`` lists later ceilings with their times."""
    caplog.set_level(logging.INFO)

    def run_control_loop(
        job, deadline_s, shared=None, *, later=(), state=None, limits=LIMITS, resumed=None, team=None, **options
    ):
        state = MemoryState() if state is None else state
        if shared is not None:
            state.set("ceiling", shared.to_json())
        job.actions += [(due_s, partial(state.set, "ceiling", ceiling.to_json())) for due_s, ceiling in later]
        exchange, controller = InstantExchange(state, job), DeadlineController(limits, deadline_s)
        if resumed is not None:
            controller.restore(resumed["controller"])
            options["totals"] = RunTotals.read(resumed["run"])
        if "allocated_devices" not in options:
            first = limits.quantize(controller.start(0.0), shared.devices if shared else None)
            job.devices = options["allocated_devices"] = first

        def take(kind):
            """Return the options that are parameters of this class."""
            return {field.name: options.pop(field.name) for field in fields(kind) if field.name in options}

        handover, settings = Handover(origin, shared=shared, **take(Handover)), Settings(**take(Settings))
        surroundings = Surroundings(clock=clock, **take(Surroundings))
        loop = PaceLoop(job, controller, exchange, handover, settings, surroundings, team=team, **options)
        return loop.run(), exchange

    return run_control_loop


@pytest.fixture(autouse=True)
def long_timeouts(monkeypatch):
    """Extend the short timeouts that precede Airflow's limit, for slow machines."""
    monkeypatch.setattr(handle_module, "_QUICK_TIMEOUT_S", 60.0)
    monkeypatch.setattr(stopping_module, "_MAIN_THREAD_S", 60.0)


@pytest.fixture
def task(clock, caplog, monkeypatch):
    from .simulated_task import SimulatedTask  # this module imports the classes above

    caplog.set_level(logging.INFO)
    monkeypatch.setattr(handle_module, "_RETRY_EVERY_S", 0.01)
    return SimulatedTask(clock, caplog)
