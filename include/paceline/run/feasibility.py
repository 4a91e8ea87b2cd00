"""What to do when a deadline cannot be met any more. The control loop asks once a step."""

from __future__ import annotations

import logging

from paceline.control import Decision
from paceline.errors import DeadlineInfeasibleError, InvalidInputError
from paceline.run.journal import Journal

ON_INFEASIBLE = ("best_effort", "fail", "extend")
_STEPS_TO_BELIEVE = 3  # one slow second is not a missed deadline
_MARGIN, _LEAST_MARGIN_S = 0.02, 1.5


def extended(earliest_s: float, began_s: float) -> float:
    """Return the new deadline: the earliest possible end plus 2 % of the training's time, at least 1.5 s.

    >>> extended(200.0, began_s=0.0), extended(200.0, began_s=100.0), extended(200.0, began_s=190.0)
    (204.0, 202.0, 201.5)
    """
    return round(earliest_s + max(_MARGIN * (earliest_s - began_s), _LEAST_MARGIN_S), 1)


class InfeasiblePolicy:
    """Believes a forecast once it has said the same three times in a row, then acts as the user wanted.

    Parameters
    ----------
    choice:
        ``"best_effort"`` goes on as fast as allowed, ``"fail"`` raises DeadlineInfeasibleError, ``"extend"`` moves
        the deadline to the earliest possible end and a little beyond, see :func:`extended`.
    journal:
        Where it is told.
    """

    def __init__(self, choice: str, journal: Journal) -> None:
        if choice not in ON_INFEASIBLE:
            raise InvalidInputError("on_infeasible", choice, "one of " + ", ".join(ON_INFEASIBLE))
        self._choice = choice
        self._journal = journal
        self.forget()

    def forget(self) -> None:
        """Begin anew, after the deadline has moved."""
        self._steps = 0
        self._reported = False

    def judge(self, now_s: float, began_s: float, deadline_s: float, decision: Decision) -> float | None:
        """Take in one decision of a training that began at ``began_s``; returns a new deadline if it is extended."""
        self._steps = 0 if decision.feasible else self._steps + 1
        earliest_s = decision.earliest_s
        if self._steps < _STEPS_TO_BELIEVE or earliest_s is None or self._reported:
            return None
        if self._choice == "fail":
            raise DeadlineInfeasibleError(
                f"deadline: {deadline_s:.1f} s cannot be met, the earliest possible end is {earliest_s:.1f} s"
            )
        if self._choice == "extend" and earliest_s < float("inf"):
            extended_s = extended(earliest_s, began_s)
            self._event(now_s, "extended", f"extended to {extended_s:.1f} s", deadline_s, earliest_s, extended_s)
            self.forget()
            return extended_s
        self._reported = True
        self._event(now_s, "infeasible", "going on as fast as allowed", deadline_s, earliest_s)
        return None

    def _event(
        self, now_s: float, kind: str, action: str, deadline_s: float, earliest_s: float, after_s: float | None = None
    ) -> None:
        self._journal.event(
            now_s,
            kind,
            "Deadline of %.1f s cannot be met, the earliest possible end is %.1f s: %s",
            deadline_s,
            earliest_s,
            action,
            level=logging.WARNING,
            deadline_s=round(deadline_s, 3),
            earliest_s=round(earliest_s, 3),
            after_s=after_s,
        )
