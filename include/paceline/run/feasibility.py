"""The response to a deadline that can no longer be met. The control loop applies it at every step."""

from __future__ import annotations

import logging

from paceline.contract import unit_of
from paceline.control import Decision
from paceline.errors import DeadlineInfeasibleError, InvalidInputError
from paceline.run._journal import Journal

ON_INFEASIBLE = ("best_effort", "fail", "extend")
_MIN_STEPS = 3  # consecutive infeasible steps, so that one slow second has no effect
_FULLY_USED = 0.9
_MARGIN, _MIN_MARGIN_S = 0.02, 1.5


def extended_deadline_s(earliest_s: float, began_s: float) -> float:
    """Return the earliest possible end plus a margin: 2 % of the training time, at least 1.5 s.

    >>> [extended_deadline_s(200.0, began_s) for began_s in (0.0, 100.0, 190.0)]
    [204.0, 202.0, 201.5]
    """
    return round(earliest_s + max(_MARGIN * (earliest_s - began_s), _MIN_MARGIN_S), 1)


def explain_usage(used_devices: float | None, devices: float, quantum: float, *, shares_gpus: bool = False) -> str:
    """Return the reason why a deadline cannot be met, if a job uses only a part of its cores.

    A job with whole devices may use little CPU time on busy devices.

    >>> explain_usage(0.24, 1.0, quantum=0.05)
    ', because the job uses 0.24 of its 1.00 cores: its host is busy, or its script waits'
    >>> explain_usage(0.95, 1.0, quantum=0.05), explain_usage(None, 1.0, quantum=0.05)
    ('', '')
    >>> explain_usage(0.24, 1.0, quantum=1.0)
    ''
    """
    if used_devices is None or quantum >= 1 or used_devices >= _FULLY_USED * devices:
        return ""
    part = f"{used_devices:.2f} of its {devices:.2f} {unit_of(quantum, shares_gpus=shares_gpus)}"
    return f", because the job uses {part}: its host is busy, or its script waits"


class InfeasiblePolicy:
    """Applies the user's choice once the deadline is infeasible in three consecutive decisions.

    Parameters
    ----------
    choice:
        ``"best_effort"`` continues with all allowed devices, ``"fail"`` raises DeadlineInfeasibleError, ``"extend"``
        moves the deadline to the earliest possible end plus a margin, see :func:`extended_deadline_s`. If a metric may
        end training before all batches are done, the choice applies only once the deadline has passed.
    journal:
        Receives the events.
    """

    def __init__(self, choice: str, journal: Journal) -> None:
        if choice not in ON_INFEASIBLE:
            raise InvalidInputError("on_infeasible", choice, "one of " + ", ".join(ON_INFEASIBLE))
        self._choice = choice
        self._journal = journal
        self._missed_progress = False
        self.reset()

    def reset(self) -> None:
        """Reset the count of infeasible steps after a deadline change."""
        self._steps = 0
        self._reported = self._reported_early_end = False

    def apply(
        self,
        now_s: float,
        began_s: float,
        deadline_s: float,
        decision: Decision,
        total: str,
        *,
        usage: str = "",
        may_end_early: bool,
    ) -> float | None:
        """Process a decision; return the new deadline if the policy extends it.

        Parameters
        ----------
        now_s, began_s, deadline_s:
            Current time, start of the job, and deadline, in seconds after the same origin.
        decision:
            The controller's decision, which assumes that training takes the ``total``, such as ``"900 batches"``.
        usage:
            Result of :func:`explain_usage`.
        may_end_early:
            Whether a metric may end training before.
        """
        self._steps = 0 if decision.feasible else self._steps + 1
        earliest_s = decision.earliest_s
        if self._steps < _MIN_STEPS or earliest_s is None or self._reported:
            return None
        if may_end_early and now_s <= deadline_s:
            self._report_early_end(deadline_s, earliest_s, total)
            return None
        reason = f"cannot be met: with all {total}, the earliest possible end is {earliest_s:.1f} s{usage}"
        if self._choice == "fail":
            raise DeadlineInfeasibleError(f"deadline: {deadline_s:.1f} s {reason}")
        if self._choice == "extend" and earliest_s < float("inf"):
            extended_s = extended_deadline_s(earliest_s, began_s)
            action = f"{reason}. It is extended to {extended_s:.1f} s"
            self._event(now_s, "extended", action, deadline_s, earliest_s, extended_s)
            self.reset()
            return extended_s
        self._reported = True
        self._event(now_s, "infeasible", f"{reason}. The job has all allowed devices", deadline_s, earliest_s)
        return None

    def miss_progress(self, deadline_s: float, waited_s: float, last_malformed: str | None) -> None:
        """At the deadline of a job without a forecast: fail if the user has chosen so, otherwise say it once.

        Parameters
        ----------
        deadline_s:
            The deadline, in seconds after the origin.
        waited_s:
            Time since the start of the job, in seconds.
        last_malformed:
            The error of the last invalid progress report, if there was one.
        """
        hint = f" Last skipped line: {last_malformed}." if last_malformed else ""
        message = (
            f"deadline: {deadline_s:.1f} s has passed, and the job has reported no batch in {waited_s:.0f} s: "
            f"it is still starting, or its script has no loop over paceline.train.track(...).{hint}"
        )
        if self._choice == "fail":
            raise DeadlineInfeasibleError(message)
        if not self._missed_progress:
            self._missed_progress = True
            self._journal.log.warning("%s Training continues without a forecast", message)

    def _report_early_end(self, deadline_s: float, earliest_s: float, total: str) -> None:
        if not self._reported_early_end:
            self._reported_early_end = True
            self._journal.log.info(
                "If training takes all %s, it ends at %.1f s at the earliest, after the deadline of %.1f s. "
                "Its metric may end it in time: all allowed devices are used",
                total,
                earliest_s,
                deadline_s,
            )

    def _event(
        self, now_s: float, kind: str, text: str, deadline_s: float, earliest_s: float, after_s: float | None = None
    ) -> None:
        self._journal.event(
            now_s,
            kind,
            "Deadline of %.1f s %s",
            deadline_s,
            text,
            level=logging.WARNING,
            deadline_s=round(deadline_s, 3),
            earliest_s=round(earliest_s, 3),
            after_s=after_s,
        )
