"""What others say to a run while it is under way: a new deadline, a ceiling. The control loop listens once a step.

Nonsense is kept out here: the old value stays, and the log says why.
"""

from __future__ import annotations

import logging
import math
from datetime import datetime
from typing import Any

from paceline.contract import CEILING, DEADLINE, Ceiling, StoredDeadline
from paceline.errors import InvalidInputError
from paceline.run.journal import Journal


class Orders:
    """The deadline and the ceiling in force, from the raw values in the live state.

    Parameters
    ----------
    origin:
        The moment that durations count from.
    deadline_s:
        The deadline in force at the start, in seconds after ``origin``.
    journal:
        Where changes and refusals are told.
    least_ceiling:
        The quantum of the devices: a ceiling below it would leave the job nothing.
    shared:
        The ceiling in force at the start, for a job whose devices come from an arbiter: it may be 0, and cannot be
        lifted.
    """

    def __init__(
        self,
        origin: datetime,
        deadline_s: float,
        journal: Journal,
        *,
        least_ceiling: float,
        shared: Ceiling | None = None,
    ) -> None:
        self._origin = origin
        self._journal = journal
        self._least_ceiling = least_ceiling
        self._seen: dict[str, Any] = {}
        self._extended_from_s: float | None = None  # until the new deadline has been read back
        self.deadline_s = deadline_s
        self.ceiling = None if shared is None else shared.devices
        self.grant = 0 if shared is None else shared.grant
        self.shared = shared is not None

    def hear(self, newest: dict[str, Any], now_s: float) -> bool:
        """Take in the newest raw values; return whether the deadline has moved."""
        before_s = self.deadline_s
        if newest.get(DEADLINE) == before_s:
            self._extended_from_s = None
        if self._is_new(DEADLINE, newest):
            self._hear_deadline(newest[DEADLINE], now_s)
        if self._is_new(CEILING, newest):
            self._hear_ceiling(newest[CEILING], now_s)
        return self.deadline_s != before_s

    def extend(self, deadline_s: float, now_s: float) -> float:
        """Move the deadline from inside; returns the raw value to write to the live state."""
        self._extended_from_s = self.deadline_s
        self.deadline_s = self._seen[DEADLINE] = round(deadline_s, 1)
        return self.deadline_s

    def _is_new(self, key: str, newest: dict[str, Any]) -> bool:
        if key not in newest or (key in self._seen and self._seen[key] == newest[key]):
            return False
        self._seen[key] = newest[key]
        return True

    def _hear_deadline(self, value: Any, now_s: float) -> None:
        said = StoredDeadline.read(value)
        if value is None or (said.value is None and math.isinf(self.deadline_s)):  # the key was deleted, or none is set
            return
        try:
            deadline_s = said.parse().seconds_after(self._origin)
            if abs(deadline_s - self.deadline_s) < 1e-3:
                return
            if self._extended_from_s is not None and abs(deadline_s - self._extended_from_s) < 1e-3:
                return  # read before the new one was written
            if deadline_s <= now_s:
                raise InvalidInputError(
                    DEADLINE, said.value, f"a time that is still to come ({now_s:.0f} s have passed)"
                )
        except InvalidInputError as error:
            kept = "there is none" if math.isinf(self.deadline_s) else f"the old one of {self.deadline_s:.1f} s stays"
            self._refuse(now_s, "deadline_refused", said.value, "New deadline not taken, %s. %s", kept, error)
            return
        before_s, self.deadline_s = self.deadline_s, deadline_s
        self._journal.event(
            now_s,
            "deadline",
            "Deadline %s to %.1f s%s",
            "set" if math.isinf(before_s) else f"moved from {before_s:.1f} s",
            deadline_s,
            f" by {said.by}" if said.by else "",
            before_s=None if math.isinf(before_s) else before_s,
            after_s=deadline_s,
            by=said.by,
        )

    def _hear_ceiling(self, value: Any, now_s: float) -> None:
        if value is None:
            if self.ceiling is not None and not self.shared:
                self.ceiling = None
                self._journal.event(now_s, "ceiling", "The ceiling is lifted", devices=None)
            return
        try:
            new = Ceiling.read(value)
            if self.shared and new.grant == 0:
                raise InvalidInputError(CEILING, value, "a grant of the arbiter that gives this job its devices")
            if new.devices < self._least_ceiling and not (self.shared and new.devices == 0):
                raise InvalidInputError(CEILING, value, f"a number of devices of at least {self._least_ceiling:g}")
        except InvalidInputError as error:
            self._refuse(now_s, "ceiling_refused", value, "New ceiling not taken, the old one stays. %s", error)
            return
        before, self.ceiling, self.grant = self.ceiling, new.devices, new.grant
        if before != new.devices:
            why = f": {new.reason}" if new.reason else ""
            self._journal.event(
                now_s, "ceiling", "Ceiling is now %g devices%s", new.devices, why, devices=new.devices, why=new.reason
            )

    def _refuse(self, now_s: float, kind: str, value: Any, message: str, *args: object) -> None:
        self._journal.event(now_s, kind, message, *args, level=logging.WARNING, value=str(value)[:100])
