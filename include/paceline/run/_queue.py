"""Waits for devices in an arbiter's pool: a job publishes its request and starts at the first grant of devices."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from threading import Event
from typing import TYPE_CHECKING, Any

from paceline.contract import CEILING, DEADLINE, PACE, Ceiling, Reason, ReasonKind
from paceline.control import Decision
from paceline.errors import DeadlineInfeasibleError, InvalidInputError, TaskStoppedError
from paceline.run._commands import Commands, read_grant
from paceline.run._history import History
from paceline.run._journal import Journal
from paceline.run._live import LiveState
from paceline.run._publishing import make_sample
from paceline.run.clock import Clock
from paceline.run.feasibility import extended_deadline_s

if TYPE_CHECKING:
    from paceline.control import Controller, PastRun

_POLL_EVERY_S = 1.0
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
    """Waits in an arbiter's pool until the arbiter grants devices.

    Parameters
    ----------
    store:
        The task's state store, which the arbiter reads and writes.
    controller:
        The controller of the job, which receives deadline changes during the wait.
    past:
        An earlier run, from which the remaining work is estimated; ``None`` if there is none.
    origin:
        The time from which the deadline is counted.
    on_infeasible:
        The response to a deadline that does not fit alongside the deadlines of other jobs.
    pool:
        Name of the Airflow pool, for messages.
    clock:
        The clock of the control loop.
    stop_requested:
        Set when the task has to end.
    log:
        The task's log.
    """

    def __init__(
        self,
        store: LiveState,
        controller: Controller,
        past: PastRun | None,
        origin: datetime,
        *,
        on_infeasible: str,
        pool: str,
        clock: Clock,
        stop_requested: Event,
        log: Any,
    ) -> None:
        self._store, self._controller, self._origin = store, controller, origin
        self._remaining = past.remaining() if past else None
        self._startup_s = past.startup_s if past else None
        self._on_infeasible, self._pool, self._log = on_infeasible, pool, log
        self._clock, self._stop_requested = clock, stop_requested
        quantum, journal = controller.limits.quantum, Journal(History(), log)
        self._commands = Commands(origin, controller.deadline_s, journal, min_ceiling=quantum, shared=Ceiling(0.0))
        self._handled_s: float | None = None  # the last deadline whose admission result was handled
        self._failing = False

    def wait(self) -> Ceiling:
        """Wait for devices; return the first grant of at least one quantum.

        Raises
        ------
        DeadlineInfeasibleError
            The deadline does not fit alongside the deadlines of other jobs, and ``on_infeasible`` is ``"fail"``.
        TaskStoppedError
            The task has to end.
        """
        logged_s = published_s = float("-inf")
        while True:
            before = (self._commands.newest, self._controller.deadline_s)
            self._call_store(self._read_commands)
            self._handle_admission()
            newest = self._commands.newest
            assert newest is not None  # an arbiter's ceiling cannot be removed
            if newest.devices > 0:
                return newest
            now_s = self._now_s()
            if before != (newest, self._controller.deadline_s) or now_s - published_s >= _PUBLISH_EVERY_S:
                self._call_store(self._publish)
                published_s = now_s
            if now_s - logged_s >= _LOG_EVERY_S:
                logged_s = now_s
                why = newest.reason if newest.grant else Reason.of(ReasonKind.NO_ANSWER)
                self._log.info("Waiting for devices from the pool %s%s", self._pool, f": {why}" if why else "")
            if self._stop_requested.is_set():
                raise TaskStoppedError("the task was stopped while it waited for devices")
            self._clock.sleep(_POLL_EVERY_S)

    def _read_commands(self) -> None:
        now_s, found = self._now_s(), {key: self._store.get(key) for key in (CEILING, DEADLINE)}
        if self._commands.update(found, now_s):
            self._controller.move_deadline(now_s, self._commands.deadline_s)

    def _handle_admission(self) -> None:
        """Apply the arbiter's admission result once for each deadline."""
        newest, deadline_s = self._commands.newest, self._controller.deadline_s
        if newest is None or newest.earliest_s is None or not newest.has_result_for(deadline_s):
            return
        if self._handled_s == newest.deadline_s:
            return
        self._handled_s = newest.deadline_s
        if newest.fits:
            self._log.info("The deadline of %.0f s fits alongside the deadlines of other jobs", deadline_s)
            return
        message = f"deadline: {deadline_s:.0f} s does not fit alongside the deadlines of other jobs, "
        message += f"the earliest deadline that fits is {newest.earliest_s:.0f} s"
        if self._on_infeasible == "fail":
            raise DeadlineInfeasibleError(message)
        self._log.warning(message)
        if self._on_infeasible == "extend":
            # Without a margin, the deadline would be infeasible again one second later.
            now_s = self._now_s()
            stored = self._commands.extend(extended_deadline_s(newest.earliest_s, now_s), now_s)
            self._log.warning("Deadline moved to %.1f s", self._commands.deadline_s)
            self._controller.move_deadline(now_s, self._commands.deadline_s)
            self._call_store(lambda: self._store.set(DEADLINE, stored))

    def _publish(self) -> None:
        newest, now_s = self._commands.newest, self._now_s()
        if now_s - self._controller.began_s >= _MOVE_START_EVERY_S:  # the arbiter decides again after each move
            self._controller.set_start(now_s)
        earliest_s = newest.earliest_s if newest else None
        feasible = newest is None or newest.fits is not False
        decision = Decision(0.0, 0.0, 0.0, None, earliest_s, feasible, _POLL_EVERY_S, self._remaining)
        sample = make_sample(
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
        self._store.set(PACE, sample.to_json())

    def _call_store(self, call: Callable[[], None]) -> None:
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
