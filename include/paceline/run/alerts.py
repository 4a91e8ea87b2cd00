"""Alerts for a deadline that is in danger, cannot be met, or was missed.

The alerts are derived from the samples of the control loop. Each kind of alert is raised once per deadline.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from paceline.contract import AlertKind, PaceSample, SentAlerts
from paceline.run.feasibility import explain_usage

_MIN_SLACK = 0.05  # fraction of the remaining time; a new neighbour on the machine could use up a smaller slack
_MIN_SAMPLES = 3  # consecutive samples, so that one noisy forecast raises no alert
_NEARLY_DONE_PCT = 95.0  # above this progress, it is too late to act on an alert
_TOLERANCE = 0.005  # fraction of the time from start to deadline; a smaller delay counts as on time
_ALERT_FIELDS = {"progress_pct", "devices", "deadline_s", "forecast_s", "earliest_s", "t_s"}


@dataclass(frozen=True)
class Alert:
    """An alert: its kind, a message for users, and the sample that caused it."""

    kind: AlertKind
    message: str
    sample: PaceSample

    def to_dict(self) -> dict[str, Any]:
        """Return the alert as JSON values."""
        return {"kind": self.kind, "message": self.message, **self.sample.model_dump(include=_ALERT_FIELDS)}


class Alerts:
    """Derives alerts from the samples of one run.

    Parameters
    ----------
    stored:
        Alerts sent by earlier tries, as returned by ``to_json``. An invalid value is ignored.

    Examples
    --------
    >>> alerts = Alerts()
    >>> late = PaceSample(
    ...     state="training", t_s=40, updated_at="2030-01-01T12:00:40Z", progress_pct=20, setpoint_pct=40, devices=2,
    ...     min_devices=0.1, max_devices=2, quantum=0.05, deadline_s=100, earliest_s=130, feasible=False)
    >>> [alerts.evaluate(late) is None for sample in range(2)]
    [True, True]
    >>> alerts.evaluate(late).message
    'cannot be met: 30 s late at best'
    >>> alerts.evaluate(late) is None  # each kind is raised only once
    True
    """

    def __init__(self, stored: object = None) -> None:
        sent = SentAlerts.read(stored) or SentAlerts()
        self._sent: set[AlertKind] = set(sent.sent)
        self._deadline_s = sent.deadline_s
        self._streak: tuple[AlertKind, int] | None = None

    def evaluate(self, sample: PaceSample) -> Alert | None:
        """Process a sample published under the key ``pace``; return a new alert if the sample causes one."""
        if sample.deadline_s != self._deadline_s:
            self._deadline_s = sample.deadline_s
            self._sent.clear()
        classified = self._classify(sample)
        if classified is None:
            self._streak = None
            return None
        kind, message = classified
        before = self._streak[1] if self._streak and self._streak[0] == kind else 0
        self._streak = (kind, before + 1)
        confirmed = before + 1 >= _MIN_SAMPLES or kind == "missed"
        if kind in self._sent or not confirmed:
            return None
        self._sent.add(kind)
        return Alert(kind, message, sample)

    def to_json(self) -> dict[str, Any]:
        """Return the value for the live state's key ``alerts``."""
        return SentAlerts(sent=sorted(self._sent), deadline_s=self._deadline_s).to_json()

    def _classify(self, sample: PaceSample) -> tuple[AlertKind, str] | None:
        now_s, deadline_s, earliest_s = sample.t_s, sample.deadline_s, sample.earliest_s
        if deadline_s is None:
            return None
        late_s = now_s - deadline_s
        if late_s > _TOLERANCE * max(deadline_s - sample.began_s, 0.0):
            done = "done" if sample.state == "finished" else f"at {sample.progress_pct:.1f} %,"
            return "missed", f"missed: {done} {late_s:.0f} s late"
        if sample.state != "training" or earliest_s is None:
            return None
        if not sample.feasible:
            usage = explain_usage(sample.used_devices, sample.devices, sample.quantum, shares_gpus=sample.shares_gpus)
            return "infeasible", f"cannot be met: {earliest_s - deadline_s:.0f} s late at best{usage}"
        slack_s = deadline_s - earliest_s
        flexible = sample.min_devices < sample.max_devices
        dangerous = slack_s < _MIN_SLACK * (deadline_s - now_s) and sample.progress_pct < _NEARLY_DONE_PCT and flexible
        if not dangerous:
            return None
        return "in_danger", f"in danger: {max(slack_s, 0):.0f} s of slack on all {sample.max_devices:g} {sample.unit}"
