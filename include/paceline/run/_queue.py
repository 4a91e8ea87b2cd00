"""Waits for devices in an arbiter's pool: a job publishes its request and starts at the first grant of devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache, partial
from threading import Event
from typing import Any

from pydantic import TypeAdapter

from paceline.contract import CEILING, DEADLINE, PACE, Ceiling, PaceSample, Reason, ReasonKind, unit_of
from paceline.control import Controller, Decision, Limits, PastRun
from paceline.errors import DeadlineInfeasibleError, DetachedError, InvalidInputError, TaskStoppedError
from paceline.run._commands import Commands, read_grant
from paceline.run._history import History
from paceline.run._journal import Journal
from paceline.run._live import LiveState
from paceline.run._publishing import make_sample
from paceline.run.clock import Clock
from paceline.run.feasibility import extended_deadline_s
from paceline.run.settings import Settings

POLL_EVERY_S = 1.0
_PUBLISH_EVERY_S = 5.0
_LOG_EVERY_S = 60.0
_MOVE_START_EVERY_S = 60.0  # alpha applies to the time from the start, which moves while the job waits


def grant_in_force(store: LiveState, allocated_devices: float) -> Ceiling:
    """Return the arbiter's newest grant to a running job, or the current allocation if no grant is valid."""
    try:
        return read_grant(store.get(CEILING))
    except InvalidInputError:
        return Ceiling(allocated_devices)


class Queue:
    """A job that waits in an arbiter's pool for its first devices: it publishes its request and reads the answers.

    Parameters
    ----------
    controller:
        The controller of the job, which receives deadline changes during the wait.
    past:
        An earlier run, from which the remaining work is estimated; ``None`` if there is none.
    origin:
        The time from which the deadline is counted.
    on_infeasible:
        The response to a deadline that cannot be promised beside the deadlines of other jobs.
    pool:
        Name of the Airflow pool, for messages.
    clock:
        The clock of the control loop.
    log:
        The task's log.
    """

    reads = (CEILING, DEADLINE)  # keys of the live state for ``step``

    def __init__(
        self,
        controller: Controller,
        past: PastRun | None,
        origin: datetime,
        *,
        on_infeasible: str,
        pool: str,
        clock: Clock,
        log: Any,
    ) -> None:
        self._controller, self._origin = controller, origin
        self._remaining = past.remaining() if past else None
        self._startup_s = past.startup_s if past else None
        self._on_infeasible, self._pool, self._log, self._clock = on_infeasible, pool, log, clock
        limits = controller.limits
        self._commands = Commands(
            origin,
            controller.deadline_s,
            Journal(History(), log),
            min_ceiling=limits.quantum,
            shared=Ceiling(0.0),
            unit=unit_of(limits.quantum, shares_gpus=limits.shares_gpus),
        )
        self._handled_s: float | None = None  # the last deadline whose admission result was handled
        self._logged_s = self._published_s = float("-inf")
        self._failing = False

    @property
    def granted(self) -> Ceiling | None:
        """The first grant of at least one quantum; ``None`` before."""
        newest = self._commands.newest
        return newest if newest is not None and newest.devices > 0 else None

    def step(self, found: Mapping[str, Any]) -> dict[str, Any]:
        """Apply the newest values of the live state; return the values to write.

        Raises DeadlineInfeasibleError if the deadline cannot be promised beside the deadlines of other jobs, and
        ``on_infeasible`` is ``"fail"``.
        """
        before, now_s = (self._commands.newest, self._controller.deadline_s), self._now_s()
        if self._commands.update(dict(found), now_s):
            self._controller.move_deadline(now_s, self._commands.deadline_s)
        values = self._handle_admission()
        newest = self._commands.newest
        if self.granted is not None:
            return values
        if before != (newest, self._controller.deadline_s) or now_s - self._published_s >= _PUBLISH_EVERY_S:
            self._published_s = now_s
            values[PACE] = self._sample().to_json()
        if now_s - self._logged_s >= _LOG_EVERY_S:
            self._logged_s = now_s
            why = newest.reason if newest and newest.grant else Reason.of(ReasonKind.NO_ANSWER)
            self._log.info("Waiting for devices from the pool %s%s", self._pool, f": {why}" if why else "")
        return values

    def wait(self, store: LiveState, stop_requested: Event) -> Ceiling:
        """Wait in this process for devices; return the first grant.

        Raises DeadlineInfeasibleError as ``step``, and TaskStoppedError if the task has to end.
        """
        while True:
            self.exchange(store)
            if self.granted is not None:
                return self.granted
            if stop_requested.is_set():
                raise TaskStoppedError("the task was stopped while it waited for devices")
            self._clock.sleep(POLL_EVERY_S)

    def exchange(self, store: LiveState) -> None:
        """Take one step with the values in ``store``."""
        found: dict[str, Any] = {}
        self._call_store(lambda: found.update({key: store.get(key) for key in self.reads}))
        for key, value in self.step(found).items():
            self._call_store(partial(store.set, key, value))

    def _handle_admission(self) -> dict[str, Any]:
        """Apply the arbiter's admission result once for each deadline; return an extended deadline to write."""
        newest, deadline_s = self._commands.newest, self._controller.deadline_s
        if newest is None or newest.earliest_s is None or not newest.has_result_for(deadline_s):
            return {}
        if self._handled_s == newest.deadline_s:
            return {}
        self._handled_s = newest.deadline_s
        if newest.fits:
            self._log.info("By its last run, the deadline of %.0f s fits alongside those of other jobs", deadline_s)
            return {}
        message = f"deadline: {deadline_s:.0f} s cannot be promised beside the deadlines of other jobs, "
        message += f"the earliest deadline that can be promised is {newest.earliest_s:.0f} s"
        if self._on_infeasible == "fail":
            raise DeadlineInfeasibleError(message)
        self._log.warning(message)
        if self._on_infeasible != "extend":
            return {}
        # Without a margin, the deadline would be infeasible again one second later.
        now_s = self._now_s()
        stored = self._commands.extend(extended_deadline_s(newest.earliest_s, now_s), now_s)
        self._log.warning("Deadline moved to %.1f s", self._commands.deadline_s)
        self._controller.move_deadline(now_s, self._commands.deadline_s)
        return {DEADLINE: stored}

    def _sample(self) -> PaceSample:
        newest, now_s = self._commands.newest, self._now_s()
        if now_s - self._controller.began_s >= _MOVE_START_EVERY_S:  # the arbiter decides again after each move
            self._controller.set_start(now_s)
        answer = newest if newest and newest.has_result_for(self._controller.deadline_s) else None
        earliest_s = answer.earliest_s if answer else None
        feasible = answer is None or answer.fits is not False
        decision = Decision(0.0, 0.0, 0.0, None, earliest_s, feasible, POLL_EVERY_S, self._remaining)
        return make_sample(
            "waiting",
            now_s,
            self._origin + timedelta(seconds=now_s),
            self._controller,
            decision,
            None,
            allocated_devices=0.0,
            used_devices=None,
            ceiling=newest.devices if newest and newest.grant else None,
            grant=self._commands.grant,
            shared=True,
            startup_s=self._startup_s,
        )

    def _call_store(self, call: Callable[[], object]) -> None:
        """Run ``call``; if it fails, log the error, because Airflow's API server may be temporarily unavailable."""
        try:
            call()
        except (EOFError, ConnectionError) as error:  # the connection is permanently closed, see Exchange
            raise TaskStoppedError("the connection to the task's supervisor is closed") from error
        except Exception as error:
            if not self._failing:
                self._log.warning("The task state store is not responding; trying again. %s", error)
            self._failing = True
        else:
            self._failing = False

    def _now_s(self) -> float:
        return self._clock.now() - self._origin.timestamp()


class WaitElsewhereError(DetachedError):
    """Raised when another process is to wait for the devices of ``job``."""

    def __init__(self, job: WaitingJob) -> None:
        super().__init__(f"another process waits for devices from the pool {job.pool}")
        self.job = job


@dataclass(frozen=True)
class WaitingJob:
    """What another process needs to wait in this one's place.

    Parameters
    ----------
    settings, limits, deadline_s, past:
        For the controller: see ``Settings.make_controller``.
    origin, pool:
        As for ``Queue``.
    """

    settings: Settings
    limits: Limits
    deadline_s: float
    past: PastRun | None
    origin: datetime
    pool: str

    def queue(self, clock: Clock, log: Any) -> Queue:
        """Return the job's queue."""
        controller = self.settings.make_controller(self.limits, self.deadline_s, self.past)
        choice = self.settings.on_infeasible
        return Queue(controller, self.past, self.origin, on_infeasible=choice, pool=self.pool, clock=clock, log=log)

    def to_json(self) -> dict[str, Any]:
        """Return the form that ``read`` accepts."""
        content: dict[str, Any] = _adapter().dump_python(self, mode="json")
        return content

    @classmethod
    def read(cls, content: Mapping[str, Any]) -> WaitingJob:
        """Return the job that ``to_json`` has returned."""
        return _adapter().validate_python(content)


@cache
def _adapter() -> TypeAdapter[WaitingJob]:
    return TypeAdapter(WaitingJob)
