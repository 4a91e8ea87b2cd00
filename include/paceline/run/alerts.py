"""When people should hear of a deadline: it is in danger, it cannot be met, or it was missed.

Judged from the samples that the control loop publishes; whoever wants to know is told once for each deadline.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from paceline.contract import AlertKind, PaceSample, SentAlerts

# Less than so much of the time left is to spare on all devices: one neighbour more, and it is gone.
_TO_SPARE = 0.05
_IN_A_ROW = 3  # samples, so that one noisy forecast wakes nobody
_NEARLY_DONE_PCT = 95.0  # from there on nothing can be done about it
_NEARLY = 0.005  # of the time from the start to the deadline: late by less is on time


@dataclass(frozen=True)
class Alert:
    """Something that people should hear of: what, in words, and the sample that shows it."""

    kind: AlertKind
    message: str
    sample: PaceSample

    def to_dict(self) -> dict[str, Any]:
        """JSON-safe."""
        return {"kind": self.kind, "message": self.message, **self.sample.model_dump(include=_TOLD)}


_TOLD = {"progress_pct", "devices", "deadline_s", "forecast_s", "earliest_s", "t_s"}


class Alerts:
    """Judges the samples of one run.

    Parameters
    ----------
    stored:
        Alerts sent by earlier tries, as returned by ``to_json``. Invalid values are ignored.

    Examples
    --------
    >>> alerts = Alerts()
    >>> late = PaceSample(
    ...     state="training", t_s=40, updated_at="2030-01-01T12:00:40Z", progress_pct=20, setpoint_pct=40, devices=2,
    ...     min_devices=0.1, max_devices=2, quantum=0.05, deadline_s=100, earliest_s=130, feasible=False)
    >>> [alerts.judge(late) is None for sample in range(2)]  # one noisy forecast wakes nobody
    [True, True]
    >>> alerts.judge(late).message
    'cannot be met: 30 s late at best'
    >>> alerts.judge(late) is None  # said once
    True
    """

    def __init__(self, stored: object = None) -> None:
        sent = SentAlerts.read(stored) or SentAlerts()
        self._sent: set[AlertKind] = set(sent.sent)
        self._deadline_s = sent.deadline_s
        self._in_a_row: tuple[AlertKind, int] | None = None

    def judge(self, sample: PaceSample) -> Alert | None:
        """Take in one sample, as published under ``pace``; return what is to be told, if anything is new."""
        if sample.deadline_s != self._deadline_s:
            self._deadline_s = sample.deadline_s
            self._sent.clear()
        found = self._found(sample)
        if found is None:
            self._in_a_row = None
            return None
        kind, message = found
        before = self._in_a_row[1] if self._in_a_row and self._in_a_row[0] == kind else 0
        self._in_a_row = (kind, before + 1)
        lasts = before + 1 >= _IN_A_ROW or kind == "missed"
        if kind in self._sent or not lasts:
            return None
        self._sent.add(kind)
        return Alert(kind, message, sample)

    def to_json(self) -> dict[str, Any]:
        """The value of the live state's key ``alerts``."""
        return SentAlerts(sent=sorted(self._sent), deadline_s=self._deadline_s).to_json()

    def _found(self, sample: PaceSample) -> tuple[AlertKind, str] | None:
        now_s, deadline_s, earliest_s = sample.t_s, sample.deadline_s, sample.earliest_s
        if deadline_s is None:
            return None
        late_s = now_s - deadline_s
        if late_s > _NEARLY * max(deadline_s - sample.began_s, 0.0):
            done = "done" if sample.state == "finished" else f"at {sample.progress_pct:.1f} %"
            return "missed", f"missed: {done} {late_s:.0f} s after it"
        if sample.state != "training" or earliest_s is None:
            return None
        if not sample.feasible:
            return "infeasible", f"cannot be met: {earliest_s - deadline_s:.0f} s late at best"
        spare_s = deadline_s - earliest_s
        steered = sample.min_devices < sample.max_devices
        dangerous = spare_s < _TO_SPARE * (deadline_s - now_s) and sample.progress_pct < _NEARLY_DONE_PCT and steered
        if not dangerous:
            return None
        return "in_danger", f"in danger: {max(spare_s, 0):.0f} s to spare on all {sample.max_devices:g} devices"
