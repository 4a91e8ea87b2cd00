"""Drift checks in the triggerer: for a deferred sensor, and as an event that starts DAGs.

``DriftSensor`` defers to ``DriftTrigger``; users give ``DriftEventTrigger`` to an ``AssetWatcher``. Data is read and
tested in a thread, so that the triggerer's shared event loop is never blocked.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from airflow.triggers.base import BaseEventTrigger, BaseTrigger, TriggerEvent

from paceline.errors import InvalidInputError

from .check import CheckOptions, DriftCheck
from .reports import write_report

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from paceline.drift import DriftReport

FireOn = Literal["new_drift", "new_window"]
STATE_KEY = "paceline_drift"
# The triggerer delivers its events about once a second. A fired event is stored only after that: a triggerer that fails
# in between fires it twice, rather than never.
HANDOVER_S = 3.0


class DriftTrigger(BaseTrigger):
    """A trigger of ``DriftSensor``: repeats the check until there is drift, then resumes the task with the report.

    Parameters
    ----------
    check:
        ``DriftCheck.to_dict()``.
    poll_interval_s:
        Seconds between checks; the first comes after one interval, as the sensor has just checked.
    keep_going:
        Log an error and keep checking instead of failing the task.
    """

    def __init__(self, check: dict[str, Any], poll_interval_s: float = 60.0, keep_going: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.check = DriftCheck(**check)
        self.poll_interval_s = poll_interval_s
        self.keep_going = keep_going

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments from which Airflow recreates this trigger."""
        kwargs = {"check": self.check.to_dict(), "poll_interval_s": self.poll_interval_s, "keep_going": self.keep_going}
        return f"{type(self).__module__}.{type(self).__qualname__}", kwargs

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield one event, ``{"report": …}``, when there is drift."""
        while True:
            await asyncio.sleep(self.poll_interval_s)
            try:
                report = await asyncio.to_thread(self.check.run)
            except Exception:
                if not self.keep_going:
                    raise
                self.log.exception("The drift check failed; trying again in %g s", self.poll_interval_s)
                continue
            self.log.info("%s", report.reason)
            if report.drifted:
                yield TriggerEvent({"report": report.to_dict()})  # type: ignore[no-untyped-call]
                return


@dataclass(frozen=True)
class Fired:
    """State of an event trigger: the last event's check, drifted parts and finding."""

    check: str = ""
    parts: tuple[str, ...] = ()
    finding: str = ""


def decide(report: DriftReport, last: Fired, check: str, fire_on: FireOn) -> tuple[bool, Fired]:
    """Return whether a finding is new, and the state to store.

    With ``"new_drift"``, drift is new if a part (a feature, or the model's error) drifts that was not fired since the
    last check without drift; continuing drift in a sliding window is not new. With ``"new_window"``, every window with
    drift is new once. Too little data changes nothing; a changed check starts without a state.

    >>> from paceline.drift import DriftReport, FeatureDrift
    >>> drift = DriftReport("drift", "", 500, 500, features=(FeatureDrift("temp", "numeric", "drift"),))
    >>> is_new, fired = decide(drift, Fired(), "check", "new_drift")
    >>> is_new, decide(drift, fired, "check", "new_drift")[0]
    (True, False)
    """
    if report.verdict == "not enough data":
        return False, last
    if not report.drifted:
        return False, Fired(check)
    known = last if last.check == check else Fired(check)
    parts, finding = report.drifted_parts, report.fingerprint()
    is_new = finding != known.finding if fire_on == "new_window" else bool(set(parts) - set(known.parts))
    return is_new, Fired(check, tuple(sorted({*known.parts, *parts})), finding if is_new else known.finding)


class DriftEventTrigger(BaseEventTrigger):
    """An event trigger that starts DAGs at each new drift, without a sensor or a worker slot.

    The event's payload is the report's summary; a DAG finds it as ``extra["payload"]`` of its triggering asset event.
    The trigger's state is kept in the asset's state store, so that a restarted triggerer does not fire again. No
    parameter is templated: let the query choose its window (``WHERE day > date('now', '-7 days')``).

    Parameters
    ----------
    poll_interval_s:
        Seconds between checks.
    fire_on:
        ``"new_drift"`` (default): once when a part starts to drift, again for another part, and again after a check
        without drift. ``"new_window"``: once for each window with drift, for data in batches.
    report_dir:
        Folder, as a path or URL, for ``report.json`` and ``report.html`` of each event.
    **check:
        As in ``DriftSensor``: ``reference``, ``current``, ``conn_id``, ``features``, ``settings`` …

    Notes
    -----
    A failed check (for example, a database outage) is logged and repeated after the interval. Use one trigger for each
    asset: with several assets, the state is lost when the triggerer restarts.

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
        """Return the class path and the arguments from which Airflow recreates this trigger."""
        kwargs = {
            "poll_interval_s": self.poll_interval_s,
            "fire_on": self.fire_on,
            "report_dir": self.report_dir,
            **self.check.to_dict(),
        }
        return f"{type(self).__module__}.{type(self).__qualname__}", kwargs

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield an event for each new drift, until Airflow ends the trigger."""
        last: Fired | None = None
        while True:
            try:
                if last is None:
                    last = await self._load_state()
                is_new, now, payload = await self._check_once(last)
            except Exception as error:
                # Airflow restarts a failed event trigger at once, and it would fail again at once.
                self.log.error("The drift check failed; trying again in %g s: %s", self.poll_interval_s, error)
                await asyncio.sleep(self.poll_interval_s)
                continue
            if is_new:
                yield TriggerEvent(payload)  # type: ignore[no-untyped-call]
                await asyncio.sleep(min(HANDOVER_S, self.poll_interval_s))
            if now != last:
                last = now
                await self._store_state(now)
            await asyncio.sleep(self.poll_interval_s)

    async def _check_once(self, last: Fired) -> tuple[bool, Fired, dict[str, Any]]:
        report = await asyncio.to_thread(self.check.run)
        self.log.info("%s", report.reason)
        is_new, now = decide(report, last, self.check.fingerprint(), self.fire_on)
        if not is_new:
            return is_new, now, {}
        payload = {**report.summary(), "current": report.current, "fingerprint": report.fingerprint()}
        if self.report_dir is not None:
            folder = report.fingerprint()
            payload |= await asyncio.to_thread(write_report, report, self.report_dir, folder)
        return is_new, now, payload

    async def _load_state(self) -> Fired:
        if self.asset_state_store is None:
            return Fired()
        try:
            stored = await self.asset_state_store.aget(STATE_KEY)
        except ValueError:
            self.log.warning("This trigger watches several assets: its state is lost when the triggerer restarts")
            return Fired()
        if not isinstance(stored, dict):
            return Fired()
        parts: Any = stored.get("parts") or ()
        return Fired(str(stored.get("check")), tuple(map(str, parts)), str(stored.get("finding")))

    async def _store_state(self, fired: Fired) -> None:
        if self.asset_state_store is None:
            return
        try:
            await self.asset_state_store.aset(STATE_KEY, {**asdict(fired), "parts": list(fired.parts)})
        except ValueError:
            return  # several assets; logged at the start
        except Exception:
            self.log.exception("Could not store the trigger's state; after a restart the last event may be repeated")
