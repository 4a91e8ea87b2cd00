"""Commands to a running job: a new deadline or a new ceiling. The control loop applies commands at every step.

The control loop rejects an invalid value, keeps the old value and logs the reason.
"""

from __future__ import annotations

import logging
import math
from datetime import datetime
from typing import Any

from paceline.contract import CEILING, DEADLINE, Ceiling, StoredDeadline, Unit, storable_deadline
from paceline.errors import InvalidInputError
from paceline.run._journal import Journal


def read_grant(raw: object) -> Ceiling:
    """Return a raw ceiling. Raises InvalidInputError if it is not from an arbiter."""
    ceiling = Ceiling.read(raw)
    if ceiling.grant == 0:
        raise InvalidInputError(CEILING, raw, "a grant from this job's arbiter")
    return ceiling


class Commands:
    """The deadline and the ceiling in effect, read from the raw values in the live state.

    Parameters
    ----------
    origin:
        The time from which a deadline given as a duration is counted.
    deadline_s:
        The deadline in effect at the start, in seconds after ``origin``.
    journal:
        Receives changes and rejections as events.
    min_ceiling:
        The smallest ceiling above 0, which is the quantum of the devices.
    shared:
        The ceiling in effect at the start, if an arbiter allocates the devices. An arbiter's ceiling may be 0
        and cannot be removed.
    unit:
        What the devices are, for messages.
    """

    def __init__(
        self,
        origin: datetime,
        deadline_s: float,
        journal: Journal,
        *,
        min_ceiling: float,
        shared: Ceiling | None = None,
        unit: Unit = "cores",
    ) -> None:
        self._origin = origin
        self._journal = journal
        self._min_ceiling, self._unit = min_ceiling, unit
        self._seen: dict[str, Any] = {}
        # Until the store returns the newest extension: the deadline before the first one, and the values of all.
        self._extended_from_s: float | None = None
        self._extensions: list[object] = []
        self.deadline_s = deadline_s
        self.newest = shared  # the ceiling in effect
        self.shared = shared is not None

    @property
    def ceiling(self) -> float | None:
        """The upper limit of the allocation; ``None`` if there is none."""
        return None if self.newest is None else self.newest.devices

    @property
    def grant(self) -> int:
        """The number of the arbiter's grant in effect; 0 before the first."""
        return 0 if self.newest is None else self.newest.grant

    def update(self, newest: dict[str, Any], now_s: float) -> bool:
        """Apply the newest raw values; return whether the deadline has changed."""
        before_s = self.deadline_s
        stored = newest.get(DEADLINE)
        if self._extensions and stored == self._extensions[-1]:
            self._forget_extensions()
        if stored not in self._extensions and self._is_new(DEADLINE, newest):
            self._update_deadline(stored, now_s)
        if self._is_new(CEILING, newest):
            self._update_ceiling(newest[CEILING], now_s)
        return self.deadline_s != before_s

    def extend(self, deadline_s: float, now_s: float) -> object:
        """Extend the deadline; return the raw value to write to the live state."""
        if self._extended_from_s is None:
            self._extended_from_s = self.deadline_s
        self.deadline_s = round(deadline_s, 1)
        stored = self._seen[DEADLINE] = storable_deadline(self.deadline_s, self._origin)
        self._extensions.append(stored)
        return stored

    def _forget_extensions(self) -> None:
        self._extended_from_s, self._extensions = None, []

    def _is_new(self, key: str, newest: dict[str, Any]) -> bool:
        if key not in newest or (key in self._seen and self._seen[key] == newest[key]):
            return False
        self._seen[key] = newest[key]
        return True

    def _update_deadline(self, value: Any, now_s: float) -> None:
        if value is None:  # deleted key
            return
        stored = StoredDeadline.read(value)
        current_s = self.deadline_s if self._extended_from_s is None else self._extended_from_s
        try:
            deadline_s = stored.accept(self._origin, now_s, current_s)
        except InvalidInputError as error:
            unlimited = math.isinf(self.deadline_s)
            kept = "there is still no deadline" if unlimited else f"the old deadline of {self.deadline_s:.1f} s remains"
            self._reject(now_s, "deadline_refused", stored.value, "New deadline rejected, %s. %s", kept, error)
            return
        if deadline_s == current_s:
            return
        self._forget_extensions()
        before_s, self.deadline_s = self.deadline_s, deadline_s
        self._journal.event(
            now_s,
            "deadline",
            "Deadline %s to %.1f s%s",
            "set" if math.isinf(before_s) else f"moved from {before_s:.1f} s",
            deadline_s,
            f" by {stored.by}" if stored.by else "",
            before_s=None if math.isinf(before_s) else before_s,
            after_s=deadline_s,
            by=stored.by,
        )

    def _update_ceiling(self, value: Any, now_s: float) -> None:
        if value is None:
            if self.newest is not None and not self.shared:
                self.newest = None
                self._journal.event(now_s, "ceiling", "Ceiling removed", devices=None)
            return
        try:
            new = read_grant(value) if self.shared else Ceiling.read(value)
            if new.devices < self._min_ceiling and not (self.shared and new.devices == 0):
                raise InvalidInputError(CEILING, value, f"a number of {self._unit} of at least {self._min_ceiling:g}")
        except InvalidInputError as error:
            self._reject(now_s, "ceiling_refused", value, "New ceiling rejected, the old ceiling remains. %s", error)
            return
        before, self.newest = self.ceiling, new
        if before != new.devices:
            reason, devices = new.reason, new.devices
            self._journal.event(
                now_s,
                "ceiling",
                "Ceiling is now %g %s%s",
                devices,
                self._unit,
                f": {reason}" if reason else "",
                devices=devices,
                why=reason and reason.text,
                reason=reason and reason.kind,
            )

    def _reject(self, now_s: float, kind: str, value: Any, message: str, *args: object) -> None:
        self._journal.event(now_s, kind, message, *args, level=logging.WARNING, value=str(value)[:100])
