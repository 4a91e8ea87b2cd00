"""Drift checks in the triggerer: for a deferred sensor, and as an event that starts DAGs.

``DriftSensor`` defers to ``DriftTrigger``; users pass a ``DriftEventTrigger`` to an ``AssetWatcher``. A thread reads
and tests the data, so that a check never blocks the triggerer's shared event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from airflow.sdk import timezone
from airflow.triggers.base import BaseEventTrigger, BaseTrigger, TriggerEvent

from paceline.airflow.windows import CHAMPION, DataWindow, Snapshot, is_sql
from paceline.contract import DriftEvent
from paceline.errors import InvalidInputError

from ._alerts import ALARMS
from ._decision import EventDecision, TriggerState, decide_new_drift, decide_new_window
from .check import CheckOptions, DriftCheck
from .reports import summarise
from .retraining import parse_cooldown

if TYPE_CHECKING:
    from typing_extensions import Unpack

FireOn = Literal["new_drift", "new_window"]
STATE_KEY = "paceline_drift"
# Seconds from firing an event to storing the state. The triggerer delivers events about once a second. If it fails
# before the state is stored, the restarted trigger fires the event again, so that no event is lost.
HANDOVER_S = 3.0


class DriftTrigger(BaseTrigger):
    """A trigger of ``DriftSensor``: repeats the check until training is needed, or the data is bad or not compared.

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
    first_check_s:
        Seconds before the first check; by default ``poll_interval_s``.
    timeout_at:
        Time at which the sensor times out (ISO 8601); passed back to the sensor in the event.
    fail_on_bad_data:
        Whether to resume the task on bad data, so that the task fails, instead of continuing to check.
    last_verdict:
        Verdict of the last check, so that the task resumes to alert when the data becomes bad; ``None`` without alerts.
    """

    def __init__(
        self,
        check: dict[str, Any],
        poll_interval_s: float = 60.0,
        keep_going: bool = False,
        report_dir: str | None = None,
        folder: Sequence[str] = (),
        first_check_s: float | None = None,
        timeout_at: str = "",
        fail_on_bad_data: bool = True,
        last_verdict: str | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.check = DriftCheck(**check)
        self.poll_interval_s = poll_interval_s
        self.keep_going = keep_going
        self.report_dir = report_dir
        self.folder = list(folder)
        self.first_check_s = first_check_s
        self.timeout_at = timeout_at
        self.fail_on_bad_data = fail_on_bad_data
        self.last_verdict = last_verdict

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments with which Airflow recreates this trigger."""
        names = ("poll_interval_s", "keep_going", "report_dir", "folder", "first_check_s", "timeout_at")
        kwargs = {name: getattr(self, name) for name in (*names, "fail_on_bad_data", "last_verdict")}
        kwargs["check"] = self.check.to_dict()
        return f"{type(self).__module__}.{type(self).__qualname__}", kwargs

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield one ``DriftEvent``, in its stored form, when the sensor is to end."""
        wait_s = self.poll_interval_s if self.first_check_s is None else self.first_check_s
        cleared = False  # whether a check had no alarm
        while True:
            await asyncio.sleep(wait_s)
            wait_s = self.poll_interval_s
            try:
                report, window = await asyncio.to_thread(self.check.measure)
                self.log.info("%s", report.reason)
                cleared = cleared or report.verdict not in ALARMS
                is_news = self.last_verdict not in (None, report.verdict)
                if self.last_verdict is not None:
                    self.last_verdict = report.verdict
                is_bad = report.verdict == "bad data" and (self.fail_on_bad_data or is_news)
                if not (
                    report.needs_training or is_bad or (report.verdict == "nothing compared" and not self.keep_going)
                ):
                    continue
                summary = await asyncio.to_thread(summarise, self.check, report, window, self.report_dir, *self.folder)
                event = DriftEvent(summary=summary, report=report, timeout_at=self.timeout_at, cleared=cleared)
            except Exception:
                if not self.keep_going:
                    raise
                self.log.exception("The drift check failed; trying again in %g s", self.poll_interval_s)
                continue
            yield TriggerEvent(event.to_json())  # type: ignore[no-untyped-call]
            return


class DriftEventTrigger(BaseEventTrigger):
    """An event trigger that starts DAGs on each new drift, without a sensor or a worker slot.

    The event's payload is the report's summary. A DAG reads the payload as ``extra["payload"]`` of its asset event.
    The trigger stores its state with the asset, so that a restarted triggerer does not repeat events. Parameters are
    not templated, so let the query select the window (``WHERE day > date('now', '-7 days')``).

    Parameters
    ----------
    poll_interval_s:
        Seconds between checks.
    fire_on:
        ``"new_drift"`` (default): fire when a feature or the model's error starts to drift; fire again for the same
        drift only after a check without drift, or after the cooldown. ``"new_window"``: fire at most once for each
        window, for data that arrives in batches. In both cases, the trigger fires once if the model has no champion.
    window_column:
        For ``"new_window"``: column of the current window whose greatest value identifies the window, for example the
        day or the number of the batch. A window that grows is checked again each time it has grown by a quarter.
        Without this parameter, ``current`` must be a file, and each change of the file is a new window.
    cooldown:
        Time after an event during which the trigger fires no further event (``"1d"``, ``"PT12H"``, seconds). If the
        drift persists, the trigger fires again after the cooldown. A new champion does not end the cooldown.
    report_dir:
        Folder, as a path or URL, for ``report.json`` and ``report.html`` of each event. ``reference="champion"`` needs
        it: the folder also keeps the compared rows, which ``EvaluateOperator`` copies into the registry, because
        ``current`` may have different rows by then.
    **check:
        Parameters as in ``DriftSensor``: ``reference``, ``current``, ``conn_id``, ``features``, ``settings`` …

    Notes
    -----
    The trigger logs a failed check (for example, during a database outage) and bad data, and checks again after the
    interval. Use a separate trigger for each asset: a trigger with several assets loses its state when the triggerer
    restarts.

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
        window_column: str | None = None,
        cooldown: timedelta | float | str | None = None,
        report_dir: str | None = None,
        **check: Unpack[CheckOptions],
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        if fire_on not in ("new_drift", "new_window"):
            raise InvalidInputError("fire_on", fire_on, "'new_drift' or 'new_window'")
        if not isinstance(poll_interval_s, (int, float)) or not poll_interval_s > 0:
            raise InvalidInputError("poll_interval_s", poll_interval_s, "a number of seconds greater than 0")
        for field in ("reference", "current"):
            if not check.get(field):
                raise InvalidInputError(field, check.get(field), "a SQL query, or the path of a Parquet or CSV file")
        if window_column is not None and fire_on != "new_window":
            raise InvalidInputError("window_column", window_column, "None, because fire_on is not 'new_window'")
        if window_column is None and fire_on == "new_window" and is_sql(check["current"]):
            accepted = "a column whose greatest value identifies the window, because current is a SQL query"
            raise InvalidInputError("window_column", window_column, accepted)
        if check["reference"] == CHAMPION and not report_dir:
            accepted = "a folder that keeps the compared rows, because the reference is the champion"
            raise InvalidInputError("report_dir", report_dir, accepted)
        self.check = DriftCheck(**check, window_column=window_column)
        self.poll_interval_s = poll_interval_s
        self.fire_on: FireOn = fire_on
        self.cooldown_s = parse_cooldown(cooldown)
        self.report_dir = report_dir

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments with which Airflow recreates this trigger."""
        kwargs = {
            "poll_interval_s": self.poll_interval_s,
            "fire_on": self.fire_on,
            "cooldown": self.cooldown_s,
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
        decision, window = await asyncio.to_thread(self._decide, last)
        report = decision.report
        if report is not None:
            self.log.log(
                logging.WARNING if report.verdict in ("bad data", "nothing compared") else logging.INFO,
                "%s",
                report.reason,
            )
        if report is None or not decision.fires:
            return False, decision.state, {}
        folder = report.fingerprint()
        summary = await asyncio.to_thread(summarise, self.check, report, window, self.report_dir, folder)
        event = summary.model_copy(update={"current": report.current, "fingerprint": folder})
        return True, decision.state, event.to_json()

    def _decide(self, last: TriggerState) -> tuple[EventDecision, DataWindow]:
        with Snapshot() as snapshot:
            now, window, check = timezone.utcnow(), self.check.read_current(snapshot), self.check.resolve()
            if check is None:
                report, digest = self.check.without_champion(window, now), self.check.fingerprint()
                return decide_new_drift(report, last, digest, now, self.cooldown_s), window
            if self.fire_on == "new_window":
                return decide_new_window(check, window, last, now, self.cooldown_s, snapshot), window
            report = check.compare(window, now, snapshot)
            return decide_new_drift(report, last, check.fingerprint(), now, self.cooldown_s), window

    async def _load_state(self) -> TriggerState:
        if self.asset_state_store is None:
            return TriggerState()
        try:
            stored = await self.asset_state_store.aget(STATE_KEY)
        except ValueError:
            self.log.warning("This trigger has several assets, so its state will be lost when the triggerer restarts")
            return TriggerState()
        return TriggerState.from_json(stored)

    async def _store_state(self, state: TriggerState) -> None:
        if self.asset_state_store is None:
            return
        try:
            await self.asset_state_store.aset(STATE_KEY, state.to_json())
        except ValueError:
            return  # the trigger has several assets, as `_load_state` has logged
        except Exception:
            self.log.exception("Could not store the trigger's state; a restarted trigger may repeat its last event")
