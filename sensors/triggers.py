"""Drift checks in the triggerer: for a deferred sensor, and as an event that starts DAGs.

``DriftSensor`` defers to ``DriftTrigger``; users pass a ``DriftEventTrigger`` to an ``AssetWatcher``. A thread reads
and tests the data, so that a check never blocks the triggerer's shared event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from airflow.triggers.base import BaseEventTrigger, BaseTrigger, TriggerEvent

from paceline.errors import InvalidInputError

from .check import CheckOptions, DriftCheck
from .reports import summarise, write_report

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from paceline.drift import DriftReport

FireOn = Literal["new_drift", "new_window"]
STATE_KEY = "paceline_drift"
# Seconds from firing an event to storing the state. The triggerer delivers events about once a second. If it fails
# before the state is stored, the restarted trigger fires the event again, so that no event is lost.
HANDOVER_S = 3.0


class DriftTrigger(BaseTrigger):
    """A trigger of ``DriftSensor``: repeats the check until there is drift, then resumes the task with the report.

    Parameters
    ----------
    check:
        Result of ``DriftCheck.to_dict()``.
    poll_interval_s:
        Seconds between checks, and before the first check, because the sensor has just checked.
    keep_going:
        Whether to log an error and continue checking, instead of failing the task.
    report_dir, folder:
        Path or URL of the folder for reports, and the path components of this report's folder in it.
    """

    def __init__(
        self,
        check: dict[str, Any],
        poll_interval_s: float = 60.0,
        keep_going: bool = False,
        report_dir: str | None = None,
        folder: Sequence[str] = (),
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.check = DriftCheck(**check)
        self.poll_interval_s = poll_interval_s
        self.keep_going = keep_going
        self.report_dir = report_dir
        self.folder = list(folder)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments with which Airflow recreates this trigger."""
        names = ("poll_interval_s", "keep_going", "report_dir", "folder")
        kwargs = {"check": self.check.to_dict(), **{name: getattr(self, name) for name in names}}
        return f"{type(self).__module__}.{type(self).__qualname__}", kwargs

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield one event, the result of ``summarise``, when there is drift."""
        while True:
            await asyncio.sleep(self.poll_interval_s)
            try:
                report = await asyncio.to_thread(self.check.run)
                self.log.info("%s", report.reason)
                if report.drifted:
                    event = await asyncio.to_thread(summarise, report, self.report_dir, *self.folder)
            except Exception:
                if not self.keep_going:
                    raise
                self.log.exception("The drift check failed; trying again in %g s", self.poll_interval_s)
                continue
            if report.drifted:
                yield TriggerEvent(event)  # type: ignore[no-untyped-call]
                return


@dataclass(frozen=True)
class TriggerState:
    """State of an event trigger: the check's digest, what has drifted so far, and the last event's report digest."""

    check: str = ""
    parts: tuple[str, ...] = ()
    finding: str = ""


def decide_event(report: DriftReport, last: TriggerState, check: str, fire_on: FireOn) -> tuple[bool, TriggerState]:
    """Return whether to fire an event for a report, and the state to store.

    With ``"new_drift"``, fire if a feature or the model's error drifts for the first time since the last check without
    drift. Drift that continues in a sliding window is not new. With ``"new_window"``, fire once for every window with
    drift. A report with too little data does not change the state. A changed check resets the state.

    >>> from paceline.drift import DriftReport, FeatureDrift
    >>> drift = DriftReport("drift", "", 500, 500, features=(FeatureDrift("temp", "numeric", "drift"),))
    >>> is_new, state = decide_event(drift, TriggerState(), "check", "new_drift")
    >>> is_new, decide_event(drift, state, "check", "new_drift")[0]
    (True, False)
    """
    if report.verdict == "not enough data":
        return False, last
    if not report.drifted:
        return False, TriggerState(check)
    known = last if last.check == check else TriggerState(check)
    parts, finding = report.drifted_parts, report.fingerprint()
    is_new = finding != known.finding if fire_on == "new_window" else bool(set(parts) - set(known.parts))
    return is_new, TriggerState(check, tuple(sorted({*known.parts, *parts})), finding if is_new else known.finding)


class DriftEventTrigger(BaseEventTrigger):
    """An event trigger that starts DAGs at each new drift, without a sensor or a worker slot.

    The event's payload is the report's summary. A DAG reads the payload as ``extra["payload"]`` of its asset event.
    The trigger stores its state with the asset, so that a restarted triggerer does not repeat events. Parameters are
    not templated, so let the query select the window (``WHERE day > date('now', '-7 days')``).

    Parameters
    ----------
    poll_interval_s:
        Seconds between checks.
    fire_on:
        ``"new_drift"`` (default): fire when a feature or the model's error starts to drift, and again only after a
        check without drift. ``"new_window"``: fire once for each window with drift, for data that arrives in batches.
    report_dir:
        Folder, as a path or URL, for ``report.json`` and ``report.html`` of each event.
    **check:
        Parameters as in ``DriftSensor``: ``reference``, ``current``, ``conn_id``, ``features``, ``settings`` …

    Notes
    -----
    The trigger logs a failed check (for example, during a database outage) and repeats it after the interval. Use a
    separate trigger for each asset: a trigger with several assets loses its state when the triggerer restarts.

    Examples
    --------
    >>> from airflow.sdk import Asset, AssetWatcher
    >>> trigger = DriftEventTrigger(reference="train.parquet", current="today.parquet", poll_interval_s=300)
    >>> Asset("flights_drift", watchers=[AssetWatcher(name="flights", trigger=trigger)]).name
    'flights_drift'
    """

    def __init__(
        self,
        *,
        poll_interval_s: float = 60.0,
        fire_on: FireOn = "new_drift",
        report_dir: str | None = None,
        **check: Unpack[CheckOptions],
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        if fire_on not in ("new_drift", "new_window"):
            raise InvalidInputError("fire_on", fire_on, "'new_drift' or 'new_window'")
        for field in ("reference", "current"):
            if not check.get(field):
                raise InvalidInputError(field, check.get(field), "a SQL query, or the path of a Parquet or CSV file")
        self.check = DriftCheck(**check)
        self.poll_interval_s = poll_interval_s
        self.fire_on: FireOn = fire_on
        self.report_dir = report_dir

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments with which Airflow recreates this trigger."""
        kwargs = {
            "poll_interval_s": self.poll_interval_s,
            "fire_on": self.fire_on,
            "report_dir": self.report_dir,
            **self.check.to_dict(),
        }
        return f"{type(self).__module__}.{type(self).__qualname__}", kwargs

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield an event for each new drift, until Airflow ends the trigger."""
        last: TriggerState | None = None
        while True:
            try:
                if last is None:
                    last = await self._load_state()
                is_new, state, payload = await self._check_once(last)
            except Exception as error:
                # Do not raise: Airflow would restart the trigger at once, and the check would fail again.
                self.log.error("The drift check failed; trying again in %g s: %s", self.poll_interval_s, error)
                await asyncio.sleep(self.poll_interval_s)
                continue
            if is_new:
                yield TriggerEvent(payload)  # type: ignore[no-untyped-call]
                await asyncio.sleep(min(HANDOVER_S, self.poll_interval_s))
            if state != last:
                last = state
                await self._store_state(state)
            await asyncio.sleep(self.poll_interval_s)

    async def _check_once(self, last: TriggerState) -> tuple[bool, TriggerState, dict[str, Any]]:
        report = await asyncio.to_thread(self.check.run)
        self.log.info("%s", report.reason)
        is_new, state = decide_event(report, last, self.check.fingerprint(), self.fire_on)
        if not is_new:
            return is_new, state, {}
        payload = {**report.summary(), "current": report.current, "fingerprint": report.fingerprint()}
        if self.report_dir is not None:
            folder = report.fingerprint()
            payload |= await asyncio.to_thread(write_report, report, self.report_dir, folder)
        return is_new, state, payload

    async def _load_state(self) -> TriggerState:
        if self.asset_state_store is None:
            return TriggerState()
        try:
            stored = await self.asset_state_store.aget(STATE_KEY)
        except ValueError:
            self.log.warning("This trigger has several assets, so its state will be lost when the triggerer restarts")
            return TriggerState()
        if not isinstance(stored, dict):
            return TriggerState()
        parts: Any = stored.get("parts") or ()
        return TriggerState(str(stored.get("check")), tuple(map(str, parts)), str(stored.get("finding")))

    async def _store_state(self, state: TriggerState) -> None:
        if self.asset_state_store is None:
            return
        try:
            await self.asset_state_store.aset(STATE_KEY, {**asdict(state), "parts": list(state.parts)})
        except ValueError:
            return  # the trigger has several assets, as `_load_state` has logged
        except Exception:
            self.log.exception("Could not store the trigger's state; a restarted trigger may repeat its last event")
