"""Drift checks in the triggerer: for a sensor that waits, and as an event that starts DAGs.

``DriftSensor`` defers to ``DriftTrigger``; users give ``DriftEventTrigger`` to an ``AssetWatcher``. Reading data and
testing it happen in a thread: the triggerer's event loop, which all triggers share, is never held up.
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
# The triggerer hands its events over about once a second. What was fired is written down only after that: a
# triggerer that dies in between fires once more when it is back, rather than never.
HANDOVER_S = 3.0


class DriftTrigger(BaseTrigger):
    """Check again and again until there is drift; then resume the task with the report. Made by ``DriftSensor``.

    Parameters
    ----------
    check:
        ``DriftCheck.to_dict()``.
    poll_interval_s:
        Seconds between checks; the first comes after one interval, as the sensor has just checked.
    keep_going:
        Log an error and go on checking instead of failing the task.
    """

    def __init__(self, check: dict[str, Any], poll_interval_s: float = 60.0, keep_going: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.check = DriftCheck(**check)
        self.poll_interval_s = poll_interval_s
        self.keep_going = keep_going

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Say how to make this trigger again, in another process."""
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
    """What was fired last: by which check, for which parts, on which finding."""

    check: str = ""
    parts: tuple[str, ...] = ()
    finding: str = ""


def decide(report: DriftReport, last: Fired, check: str, fire_on: FireOn) -> tuple[bool, Fired]:
    """Whether a finding is news, and what to remember.

    With ``"new_drift"`` drift is news when a part (a feature, or the model's error) drifts that was not fired
    since all was well last; a sliding window that goes on drifting is not. With ``"new_window"`` every window
    that drifts is news, once. Too little data changes nothing; another check starts afresh.

    >>> from paceline.drift import DriftReport, FeatureDrift
    >>> drift = DriftReport("drift", "", 500, 500, features=(FeatureDrift("temp", "numeric", "drift"),))
    >>> news, fired = decide(drift, Fired(), "check", "new_drift")
    >>> news, decide(drift, fired, "check", "new_drift")[0]
    (True, False)
    """
    if report.verdict == "not enough data":
        return False, last
    if not report.drifted:
        return False, Fired(check)
    known = last if last.check == check else Fired(check)
    parts, finding = report.drifted_parts, report.fingerprint()
    news = finding != known.finding if fire_on == "new_window" else bool(set(parts) - set(known.parts))
    return news, Fired(check, tuple(sorted({*known.parts, *parts})), finding if news else known.finding)


class DriftEventTrigger(BaseEventTrigger):
    """An event for each new drift, to schedule DAGs by: no sensor and no worker slot is taken while waiting.

    The event's payload is the report's summary; a DAG finds it as ``extra["payload"]`` of its triggering asset
    event. What was fired is kept in the asset's state store, so a triggerer that restarts does not fire again.
    Nothing here is templated: let the query choose its window (``WHERE day > date('now', '-7 days')``).

    Parameters
    ----------
    poll_interval_s:
        Seconds between checks.
    fire_on:
        ``"new_drift"`` (default): once when something starts to drift, again when something else does, and anew
        after a check without drift. ``"new_window"``: once for each window that drifts, for data in batches.
    report_dir:
        Folder, as a path or URL, for ``report.json`` and ``report.html`` of each event.
    **check:
        As in ``DriftSensor``: ``reference``, ``current``, ``conn_id``, ``features``, ``minimum_samples`` …

    Notes
    -----
    A check that fails (a database that is away) is logged and made again after the interval. One trigger should
    watch one asset: for several, what was fired is remembered only while the triggerer lives.

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
        """Say how to make this trigger again, in another process."""
        kwargs = {
            "poll_interval_s": self.poll_interval_s,
            "fire_on": self.fire_on,
            "report_dir": self.report_dir,
            **self.check.to_dict(),
        }
        return f"{type(self).__module__}.{type(self).__qualname__}", kwargs

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield an event for each new drift, for as long as somebody listens."""
        last: Fired | None = None
        while True:
            try:
                if last is None:
                    last = await self._remembered()
                news, now, payload = await self._look(last)
            except Exception as error:
                # An event trigger that raises is started again at once, and would fail again at once.
                self.log.error("The drift check failed; trying again in %g s: %s", self.poll_interval_s, error)
                await asyncio.sleep(self.poll_interval_s)
                continue
            if news:
                yield TriggerEvent(payload)  # type: ignore[no-untyped-call]
                await asyncio.sleep(min(HANDOVER_S, self.poll_interval_s))
            if now != last:
                last = now
                await self._remember(now)
            await asyncio.sleep(self.poll_interval_s)

    async def _look(self, last: Fired) -> tuple[bool, Fired, dict[str, Any]]:
        report = await asyncio.to_thread(self.check.run)
        self.log.info("%s", report.reason)
        news, now = decide(report, last, self.check.fingerprint(), self.fire_on)
        if not news:
            return news, now, {}
        payload = {**report.summary(), "current": report.current, "fingerprint": report.fingerprint()}
        if self.report_dir is not None:
            place = report.fingerprint()
            payload |= await asyncio.to_thread(write_report, report, self.report_dir, place)
        return news, now, payload

    async def _remembered(self) -> Fired:
        if self.asset_state_store is None:
            return Fired()
        try:
            kept = await self.asset_state_store.aget(STATE_KEY)
        except ValueError:
            self.log.warning("This trigger watches several assets: what it fired is lost when the triggerer restarts")
            return Fired()
        if not isinstance(kept, dict):
            return Fired()
        parts: Any = kept.get("parts") or ()
        return Fired(str(kept.get("check")), tuple(map(str, parts)), str(kept.get("finding")))

    async def _remember(self, fired: Fired) -> None:
        if self.asset_state_store is None:
            return
        try:
            await self.asset_state_store.aset(STATE_KEY, {**asdict(fired), "parts": list(fired.parts)})
        except ValueError:
            return  # several assets; said at the start
        except Exception:
            self.log.exception("What was fired could not be stored; a restart of the triggerer may fire it again")
