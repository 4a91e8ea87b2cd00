"""A training's place in an arbiter's pool: it says what it needs, and begins when it has been given some."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from threading import Event
from typing import TYPE_CHECKING, Any

from paceline.contract import CEILING, DEADLINE, PACE, Ceiling, StoredDeadline
from paceline.control import Decision
from paceline.errors import AskedToEndError, DeadlineInfeasibleError, InvalidInputError
from paceline.run.feasibility import extended
from paceline.run.live import LiveState
from paceline.run.sample import sample

if TYPE_CHECKING:
    from paceline.control import Controller, RemainingWork

_LOOK_EVERY_S = 1.0
_SAY_EVERY_S = 5.0
_TELL_EVERY_S = 60.0
_BEGIN_ANEW_S = 60.0  # a job that waits begins later, and its safety factor counts from then


def grant_in_force(store: LiveState, held: float) -> Ceiling:
    """The arbiter's newest word to a job that runs; without one that can be read, no more than what it holds."""
    try:
        return _grant(store.get(CEILING))
    except InvalidInputError:
        return Ceiling(held)


def _grant(raw: object) -> Ceiling:
    said = Ceiling.read(raw)
    if said.grant == 0:
        raise InvalidInputError(CEILING, raw, "a grant of the arbiter that gives this job its devices")
    return said


class Queue:
    """A training's place in an arbiter's pool, until it is given devices.

    Parameters
    ----------
    store:
        The task's state store: what the arbiter reads and writes.
    controller:
        The training's own; it hears of deadlines that move meanwhile.
    remaining:
        What the training takes, by an earlier run; ``None`` if there was none.
    begin:
        The moment that the deadline counts from.
    on_infeasible:
        What to do if the deadline does not fit beside those of others.
    pool:
        The Airflow pool, for messages.
    asked_to_end:
        Set when the task is to end.
    log:
        The task's log.
    """

    def __init__(
        self,
        store: LiveState,
        controller: Controller,
        remaining: RemainingWork | None,
        begin: datetime,
        *,
        on_infeasible: str,
        pool: str,
        asked_to_end: Event,
        log: Any,
    ) -> None:
        self._store, self._controller, self._remaining, self._begin = store, controller, remaining, begin
        self._on_infeasible, self._pool, self._log = on_infeasible, pool, log
        self._asked_to_end = asked_to_end
        self._newest: Ceiling | None = None
        self._heeded_s: float | None = None  # the deadline whose answer has been heeded
        self._refused: Any = None
        self._troubled = False

    def wait(self) -> Ceiling:
        """Wait until there are devices; returns how many there may be at most.

        Raises
        ------
        DeadlineInfeasibleError
            The deadline does not fit beside those of others, and ``on_infeasible`` is ``"fail"``.
        AskedToEndError
            The task is to end.
        """
        told_s = said_s = float("-inf")
        while True:
            before = (self._newest, self._controller.deadline_s)
            self._tolerantly(self._hear)
            self._heed_answer()
            newest = self._newest
            if newest is not None and newest.devices >= self._controller.limits.quantum:
                self._log.info("Given %g devices of the pool %s: %s", newest.devices, self._pool, newest.reason)
                return newest
            now_s = time.monotonic()
            if before != (newest, self._controller.deadline_s) or now_s - said_s >= _SAY_EVERY_S:
                self._tolerantly(self._say)
                said_s = now_s
            if now_s - told_s >= _TELL_EVERY_S:
                told_s = now_s
                why = newest.reason if newest else "nobody has answered yet; is its arbiter running?"
                self._log.info("Waiting for devices of the pool %s: %s", self._pool, why)
            if self._asked_to_end.wait(_LOOK_EVERY_S):
                raise AskedToEndError("the task was asked to end while it waited for devices")

    def _hear(self) -> None:
        raw = self._store.get(CEILING)
        if raw is not None and raw != self._refused:
            try:
                self._newest = _grant(raw)
            except InvalidInputError as error:
                self._refused = raw
                self._log.warning("Not taken. %s", error)
        said = self._store.get(DEADLINE)
        if said is not None:
            try:
                deadline_s = StoredDeadline.read(said).parse().seconds_after(self._begin)
            except InvalidInputError:
                return  # the control loop will say so
            if deadline_s > 0 and abs(deadline_s - self._controller.deadline_s) > 1e-3:
                self._controller.move_deadline(self._now_s(), deadline_s)

    def _heed_answer(self) -> None:
        """What the arbiter says of the deadline, once."""
        newest, deadline_s = self._newest, self._controller.deadline_s
        if newest is None or newest.earliest_s is None or not newest.answers(deadline_s):
            return
        if self._heeded_s == newest.asked_s:
            return
        self._heeded_s = newest.asked_s
        if newest.fits:
            self._log.info("The deadline of %.0f s fits beside those of others", deadline_s)
            return
        message = f"deadline: {deadline_s:.0f} s does not fit beside those of others, the earliest that would is "
        message += f"{newest.earliest_s:.0f} s"
        if self._on_infeasible == "fail":
            raise DeadlineInfeasibleError(message)
        self._log.warning(message)
        if self._on_infeasible == "extend":
            # The earliest deadline itself would be infeasible a second from now.
            moved_s = extended(newest.earliest_s, self._now_s())
            self._log.warning("The deadline is moved to %.1f s", moved_s)
            self._controller.move_deadline(self._now_s(), moved_s)
            self._tolerantly(lambda: self._store.set(DEADLINE, moved_s))

    def _say(self) -> None:
        newest, now_s = self._newest, self._now_s()
        if now_s - self._controller.began_s >= _BEGIN_ANEW_S:  # not at every sample: the arbiter would decide anew
            self._controller.begins(now_s)
        earliest_s = newest.earliest_s if newest else None
        feasible = newest is None or newest.fits is not False
        decision = Decision(0.0, 0.0, 0.0, None, earliest_s, feasible, _LOOK_EVERY_S, self._remaining)
        value = sample(
            "waiting",
            now_s,
            self._begin + timedelta(seconds=now_s),
            self._controller,
            decision,
            None,
            held_devices=0.0,
            used_devices=None,
            ceiling=newest.devices if newest else None,
            grant=newest.grant if newest else 0,
        )
        self._store.set(PACE, value.to_json())

    def _tolerantly(self, exchange: Callable[[], None]) -> None:
        """Airflow's API server may be away for a while: who waits goes on waiting."""
        try:
            exchange()
        except (EOFError, ConnectionError) as error:  # of a store whose other end has gone for good, see Exchange
            raise AskedToEndError("whoever runs this task has gone") from error
        except Exception as error:
            if not self._troubled:
                self._log.warning("The task state store does not answer; trying again. %s", error)
            self._troubled = True
        else:
            self._troubled = False

    def _now_s(self) -> float:
        return datetime.now(timezone.utc).timestamp() - self._begin.timestamp()
