"""Decides whether ``DriftEventTrigger`` fires an event after a check, given the state after the previous checks.

The state is a value that the trigger stores with its asset, so that a restarted trigger does not repeat events.
"""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from .retraining import is_cooling_down, parse_time

if TYPE_CHECKING:
    from paceline.airflow.windows import DataWindow, Snapshot
    from paceline.drift import DriftReport

    from .check import DriftCheck

# A growing window is checked again when it has grown by this factor.
GROWTH = 1.25
# Number of windows that are remembered after their events, in case a window appears again.
_REMEMBERED = 20


@dataclass(frozen=True)
class TriggerState:
    """The state that an event trigger keeps between its checks.

    ``check`` is the digest of the check. ``parts`` are all ``drifted_parts`` since the last check without drift.
    ``window`` identifies the newest window, ``check_count`` is the number of its checks, and ``rows`` the number of
    its rows at the last check. ``fired`` identifies the newest windows that have led to an event. ``fired_at`` is the
    time of the last event (ISO 8601), or "".
    """

    check: str = ""
    parts: tuple[str, ...] = ()
    window: str = ""
    check_count: int = 0
    rows: int = 0
    fired: tuple[str, ...] = ()
    fired_at: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        loaded: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        return loaded

    @classmethod
    def from_json(cls, stored: object) -> TriggerState:
        """Build a state from the result of ``to_json``. Ignore unknown keys and values that are not a state.

        >>> TriggerState.from_json({"check": "1f0c", "parts": ["temp"], "finding": "of an earlier version"}).parts
        ('temp',)
        """
        try:
            state: dict[str, Any] = dict(stored)  # type: ignore[call-overload]
            parts, fired = (tuple(map(str, state.get(key) or ())) for key in ("parts", "fired"))
            numbers = {key: int(state.get(key) or 0) for key in ("check_count", "rows")}
            texts = {key: str(state.get(key) or "") for key in ("check", "window", "fired_at")}
            if texts["fired_at"]:
                parse_time(texts["fired_at"])
        except (TypeError, ValueError):
            return cls()
        return cls(parts=parts, fired=fired, **numbers, **texts)  # type: ignore[arg-type]


@dataclass(frozen=True)
class EventDecision:
    """Whether to fire an event for ``report``, and the state to store. Without a check, ``report`` is ``None``."""

    fires: bool
    state: TriggerState
    report: DriftReport | None


def decide_new_drift(
    report: DriftReport, last: TriggerState, check: str, now: datetime, cooldown_s: float | None
) -> EventDecision:
    """Fire if a feature or the model's error drifts for the first time since the last check without drift.

    Drift that continues in a sliding window is not new. With a cooldown, such drift causes another event after the
    cooldown, because the first training has not ended the drift. A report of too little or bad data, or without
    a compared feature, does not change the state. A changed check or champion (``check``) resets the state.

    >>> from datetime import timezone
    >>> from paceline.drift import DriftReport, FeatureDrift
    >>> now = datetime(2030, 1, 1, tzinfo=timezone.utc)
    >>> drift = DriftReport("drift", "", 500, 500, features=(FeatureDrift("temp", "numeric", "drift"),))
    >>> first = decide_new_drift(drift, TriggerState(), "check", now, None)
    >>> first.fires, decide_new_drift(drift, first.state, "check", now, None).fires
    (True, False)
    """
    if report.verdict in ("not enough data", "bad data", "nothing compared"):
        return EventDecision(False, last, report)
    known = last if last.check == check else TriggerState(check, fired_at=last.fired_at)
    if not report.needs_training:
        return EventDecision(False, TriggerState(check, fired_at=known.fired_at), report)
    parts = set(report.drifted_parts)
    if is_cooling_down(known.fired_at, now, cooldown_s):
        return EventDecision(False, known, report)
    if parts <= set(known.parts) and cooldown_s is None:
        return EventDecision(False, known, report)
    parts |= set(known.parts)
    state = dataclasses.replace(known, parts=tuple(sorted(parts)), fired_at=now.isoformat())
    return EventDecision(True, state, report)


def decide_new_window(
    check: DriftCheck,
    window: DataWindow,
    last: TriggerState,
    now: datetime,
    cooldown_s: float | None,
    snapshot: Snapshot | None = None,
) -> EventDecision:
    """Check the current window unless it has led to an event or hardly grown since its last check; fire on drift.

    The checks of one window share the significance, so that a window that grows causes no more false alarms than a
    complete one; see ``significance_of_check``. A check that has tested nothing, for example of too few groups, uses
    none of it.
    """
    settings = check.settings
    digest = check.fingerprint()
    if not window.identity or len(window.frame) < settings.minimum_samples:
        return EventDecision(False, last, None)  # for example, a table that is being loaded again
    known = last
    if (last.check, last.window) != (digest, window.identity):
        fired = last.fired if last.check == digest else ()
        known = TriggerState(digest, window=window.identity, fired=fired, fired_at=last.fired_at)
    if (
        window.identity in known.fired
        or window.rows < known.rows * GROWTH
        or is_cooling_down(known.fired_at, now, cooldown_s)
    ):
        return EventDecision(False, known, None)
    number = known.check_count + 1
    spent = dataclasses.replace(settings, significance=significance_of_check(settings.significance, number))
    report = dataclasses.replace(check, settings=spent).compare(window, now, snapshot)
    # Check the window again until its data is repaired or complete. Bad data fires no event, whatever was tested.
    incomplete = report.verdict in ("not enough data", "nothing compared") and not report.is_tested
    if report.verdict == "bad data" or incomplete:
        return EventDecision(False, known, report)
    state = dataclasses.replace(known, check_count=number, rows=window.rows)
    if not report.needs_training:
        return EventDecision(False, state, report)
    fired = (*known.fired, window.identity)[-_REMEMBERED:]
    return EventDecision(True, dataclasses.replace(state, fired=fired, fired_at=now.isoformat()), report)


def significance_of_check(significance: float, number: int) -> float:
    """Return the share of ``significance`` for check ``number`` of a growing window; the shares add up to it.

    The first check, the only one of a window that arrives complete, gets 61 %. This is an alpha-spending sequence
    (K. K. G. Lan and D. L. DeMets, "Discrete sequential boundaries for clinical trials", Biometrika 70, 1983) that
    falls with the square of ``number``.

    >>> round(significance_of_check(0.01, 1), 5)
    0.00608
    >>> round(sum(significance_of_check(0.01, number) for number in range(1, 10_000)), 4)
    0.01
    """
    return significance * 6.0 / (math.pi * number) ** 2
