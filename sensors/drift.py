"""``DriftSensor``: waits for drift in data, or checks once and continues the DAG run only on drift."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from airflow.sdk import Asset, BaseSensorOperator, PokeReturnValue, timezone
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from paceline.airflow.callbacks import Callback, read_callbacks
from paceline.airflow.metrics import send_check
from paceline.airflow.tasks import CheckedTask
from paceline.airflow.windows import CHAMPION
from paceline.contract import DRIFT_XCOM, DriftEvent, DriftSummary, fit_to_xcom
from paceline.drift import DriftSettings
from paceline.errors import BadDataError, InvalidInputError, NothingComparedError

from ._alerts import FIELD, alert_once
from ._fields import read_fields
from .check import CheckOptions, DriftCheck, check_champion, check_sources
from .reports import DriftReportLink, run_folder, summarise
from .retraining import Hold, find_hold, load_started, parse_time, record_started
from .triggers import DriftTrigger

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk import Context

    from paceline.airflow.windows import Parameters
    from paceline.contract import DriftReport

OnNoDrift = Literal["wait", "skip", "succeed"]
OnBadData = Literal["fail", "no_drift"]


class DriftSensor(CheckedTask, BaseSensorOperator):
    """A sensor that compares a current window of data with a reference window and reports drift.

    On drift, the task succeeds and returns the report's summary. Airflow then emits an event with the summary as
    ``extra`` for each asset in ``outlets``. Without drift there is no asset event, regardless of ``on_no_drift``.

    Parameters
    ----------
    reference, current:
        The windows. Each is a SQL query (``SELECT`` or ``WITH`` …, or a template file ending in ``.sql``), executed
        through ``conn_id``, or the path or URL of a ``.parquet``, ``.csv`` or ``.csv.gz`` file. A URL may name its
        Airflow connection: ``s3://aws_default@bucket/key.parquet``. ``reference="champion"`` is the data on which the
        champion of ``model`` was trained: the registry's copy, else the source in its ``data_window``. Without a
        champion, the sensor starts training. This needs ``report_dir`` unless ``current`` is a template that names a
        separate window for each run.
    conn_id:
        Database connection for queries.
    reference_parameters, current_parameters:
        Values for the placeholders of the queries.
    features:
        Columns to compare, as ``columns`` of ``paceline.drift.compare``.
    categorical, prediction, actual, time, groups, season, segments, settings:
        Columns and their roles, and thresholds, as in ``paceline.drift.compare``. With ``prediction`` and ``actual``,
        the sensor also monitors the model's error.
    model, registry:
        Name of the model, under which the pages show the history of its drift; and path, URL or ``mlflow://CONN_ID`` of
        its registry. ``reference="champion"`` needs both.
    signing_conn_id:
        Id of a connection whose password is the key of ``EvaluateOperator``. The check then fails if this key has not
        signed the champion, which names the reference.
    cooldown:
        Time after a run with drift during which further drift does not start training (``"1d"``, ``"PT12H"``, seconds).
        With a cooldown or ``reference="champion"``, drift also does not start training while an earlier run of the DAG
        trains because of drift. Both rules consider the earlier runs of this task with the same ``model``.
    on_no_drift:
        ``"wait"`` (default): check every ``poke_interval`` until there is drift or ``timeout`` has passed. ``"skip"``:
        check once and, without drift, skip this task and its downstream tasks; for scheduled DAGs. ``"succeed"``: check
        once and succeed; the summary contains the verdict. Too little data counts as no drift, and so does drift that
        does not start training.
    on_bad_data:
        What to do if the verdict is bad data, for example because a column has no values (see ``QualitySettings``); it
        never starts training. ``"fail"`` (default): store the report and fail, so that retries and failure callbacks
        run. ``"no_drift"``: as without drift; a waiting sensor waits until the data is repaired.
    report_dir:
        Path or URL of the folder for ``report.json`` and ``report.html`` of each run. With ``reference="champion"``, it
        also keeps the compared rows of each run that trains, from where ``EvaluateOperator`` copies them into the
        registry.
    report_url:
        URL at which browsers reach ``report_dir``. If set, the task's page has a button "Drift report".
    on_drift_alert:
        A notifier, a function of the task's context, or a list of them, called if the verdict is drift, bad data or
        nothing compared. The summary is ``paceline`` in the context, with ``message`` and ``kind``, the verdict. A
        sensor that waits calls it once for each change: again when more drifts, or after a check without an alarm.
        Errors are logged.
    deferrable:
        Whether to wait in the triggerer, without a worker slot. Default: ``[operators] default_deferrable``.

    Returns
    -------
    The summary (XCom ``return_value``): ``verdict``, ``reason``, ``retrain``, ``drifted_features`` and more, see
    :class:`~paceline.contract.DriftSummary`. XCom ``window`` is the source of the current window, for
    ``EvaluateOperator(data_window=drift.output["window"])``.
    XCom ``report`` contains the whole report for Airflow's pages; if it exceeds 48 kB, the least severe features are
    omitted.

    Raises
    ------
    InvalidInputError
        At run time, if a connection, file, column or value is invalid.
    BadDataError
        If the data is bad and ``on_bad_data`` is ``"fail"``.
    NothingComparedError
        If every feature is skipped, so that the check cannot find drift. The error names the reasons.
    AirflowFailException
        If the rendered value of a template field is invalid, for example if ``features`` is text.

    Examples
    --------
    >>> sensor = DriftSensor(
    ...     task_id="drift",
    ...     conn_id="warehouse",
    ...     reference="SELECT * FROM training_data",
    ...     current="SELECT * FROM production WHERE day = '{{ ds }}'",
    ...     on_no_drift="skip",
    ... )
    >>> DriftSensor(task_id="drift", reference="a.csv", current="b.csv", settings=DriftSettings(minimum_samples=0))
    Traceback (most recent call last):
    paceline.errors.InvalidInputError: minimum_samples: got 0, expected a whole number of at least 2
    """

    template_fields: Sequence[str] = (
        "reference",
        "current",
        "conn_id",
        "reference_parameters",
        "current_parameters",
        "features",
        "categorical",
        "report_dir",
        "report_url",
        "model",
        "registry",
        "cooldown",
    )
    template_ext: Sequence[str] = (".sql",)
    template_fields_renderers: ClassVar[dict[str, str]] = {"reference": "sql", "current": "sql"}
    operator_extra_links = (DriftReportLink(),)
    ui_color = "#d7eaf0"

    def __init__(
        self,
        *,
        reference: str,
        current: str,
        conn_id: str | None = None,
        reference_parameters: Parameters | None = None,
        current_parameters: Parameters | None = None,
        features: Sequence[str] | None = None,
        categorical: Sequence[str] = (),
        prediction: str | Mapping[str, str] | None = None,
        actual: str | None = None,
        time: str | None = None,
        groups: str | None = None,
        season: str | None = None,
        segments: str | None = None,
        settings: DriftSettings = DriftSettings(),  # noqa: B008  (frozen)
        model: str | None = None,
        registry: str | None = None,
        signing_conn_id: str | None = None,
        cooldown: timedelta | float | str | None = None,
        on_no_drift: OnNoDrift = "wait",
        on_bad_data: OnBadData = "fail",
        report_dir: str | None = None,
        report_url: str | None = None,
        on_drift_alert: Callback | Sequence[Callback] = (),
        deferrable: bool | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if on_no_drift not in ("wait", "skip", "succeed"):
            raise InvalidInputError("on_no_drift", on_no_drift, "'wait', 'skip' or 'succeed'")
        if on_bad_data not in ("fail", "no_drift"):
            raise InvalidInputError("on_bad_data", on_bad_data, "'fail' or 'no_drift'")
        self.reference = reference
        self.current = current
        self.conn_id = conn_id
        self.reference_parameters = reference_parameters
        self.current_parameters = current_parameters
        self.features: Any = features
        self.categorical: Any = categorical
        self.prediction = prediction
        self.actual = actual
        self.time = time
        self.groups = groups
        self.season = season
        self.segments = segments
        self.settings = settings
        self.model = model
        self.registry = registry
        self.signing_conn_id = signing_conn_id
        self.cooldown: Any = cooldown
        self.on_no_drift: OnNoDrift = on_no_drift
        self.on_bad_data: OnBadData = on_bad_data
        self.report_dir = report_dir
        self.report_url = report_url
        self.on_drift_alert = read_callbacks(FIELD, on_drift_alert)
        if deferrable is None:
            deferrable = conf.getboolean("operators", "default_deferrable", fallback=False)
        self.deferrable = deferrable
        self.report_link = ""
        self._hold: Hold | None = None  # why the last check starts no training
        self._verdict = ""  # of the last check
        self._cleared = False  # whether the trigger has seen a check without an alarm
        self._summary: DriftSummary | None = None  # the result
        # Reject invalid settings when Airflow parses the DAG, not when the task runs.
        self._check(rendered=False)
        check_sources(reference, current)
        check_champion(reference, model, registry, settings)
        if reference == CHAMPION and report_dir is None and isinstance(current, str) and "{{" not in current:
            accepted = "a folder that keeps the compared rows, because `current` may have other rows at the next check"
            raise InvalidInputError("report_dir", report_dir, accepted)
        read_fields(self, rendered=False)

    def execute(self, context: Context) -> Any:
        """Check for drift; with ``on_no_drift="wait"``, repeat the check here or in the triggerer."""
        if not self.deferrable:
            return super().execute(context)
        try:
            with self._skip_failures():
                result = self.poke(context)
        except AirflowSkipException:
            raise
        except Exception as error:
            if isinstance(error, AirflowFailException) or not self.silent_fail:
                raise
            self.log.exception("The drift check failed; trying again in %g s", self.poke_interval)
            result = PokeReturnValue(is_done=False)
        timeout_at = timezone.utcnow() + timedelta(seconds=self.timeout)
        return result.xcom_value if result.is_done else self._defer(context, timeout_at, self._hold)

    @contextmanager
    def _skip_failures(self) -> Iterator[None]:
        """Skip the task after an error as Airflow does for a sensor that waits in a worker process."""
        try:
            yield
        except AirflowSkipException:
            raise
        except Exception as error:
            final = isinstance(error, AirflowFailException)
            option = "never_fail" if self.never_fail else "soft_fail" if final and self.soft_fail else ""
            if option:
                raise AirflowSkipException(f"Skipped after an error, because {option} is True.") from error
            raise

    def _defer(self, context: Context, timeout_at: datetime, hold: Hold | None) -> None:
        now = timezone.utcnow()
        if hold is not None and hold.until is not None:
            first_check_s = max(self.poke_interval, (hold.until - now).total_seconds())
        else:
            first_check_s = self.poke_interval
        trigger = DriftTrigger(
            self._check().to_dict(),
            self.poke_interval,
            keep_going=self.silent_fail,
            report_dir=self.report_dir,
            folder=run_folder(context["ti"]),
            first_check_s=first_check_s,
            timeout_at=timeout_at.isoformat(),
            fail_on_bad_data=self._resumes_on_bad_data,
            last_verdict=self._verdict if self.on_drift_alert else None,
        )
        # Airflow accepts no timeout of 0 or less. A sensor whose time is up times out at once.
        left = max(timeout_at - now, timedelta(milliseconds=1))
        self.defer(trigger=trigger, method_name="execute_complete", timeout=left)

    @property
    def _resumes_on_bad_data(self) -> bool:
        return self.on_bad_data == "fail" and not self.silent_fail

    def poke(self, context: Context) -> PokeReturnValue:
        """Check for drift once."""
        self._read_templates()
        check = self._check()
        report, window = check.measure(self._now(context))
        self._verdict = report.verdict
        self.log.info("%s", report.reason)
        skipped = [f"{one.name} ({one.reason})" for one in report.features if one.verdict == "skipped"]
        for remark in [*report.notes, *([f"Not compared: {', '.join(skipped[:20])}"] if skipped else [])]:
            self.log.info("%s", remark)
        for problem in report.quality:
            self.log.warning("Data quality: %s: %s: %s", problem.kind, problem.column or "rows", problem.reason)
        fails = report.verdict == "nothing compared" or (report.verdict == "bad data" and self.on_bad_data == "fail")
        hold = self._hold = self._find_hold(context) if report.needs_training else None
        if self.on_no_drift == "wait" and (hold or not report.needs_training) and not fails:
            of_model = {"model": self.model, "registry": self.registry}
            self._alert(context, report.summary().model_copy(update=of_model), hold)
            return PokeReturnValue(is_done=False)
        summary = summarise(check, report, window, self.report_dir, *run_folder(context["ti"]))
        return PokeReturnValue(is_done=True, xcom_value=self._finish(context, hold, summary, report))

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Finish the task after the trigger has found drift or bad data, or has compared nothing.

        If earlier training makes further training unnecessary, wait again.
        """
        with self._skip_failures():
            self._read_templates()
            found = DriftEvent.model_validate(event)
            summary = found.summary
            self.log.info("%s", summary.reason)
            self._cleared = found.cleared
            hold = self._find_hold(context) if summary.needs_training else None
            if hold is not None or (summary.verdict == "bad data" and not self._resumes_on_bad_data):
                self._verdict = summary.verdict
                self._alert(context, summary, hold)
                return self._defer(context, parse_time(found.timeout_at), hold)
            return self._finish(context, None, summary, found.report)

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> OperatorLineage[Any, Any]:
        """Return both windows and the drift report, for Airflow's OpenLineage provider."""
        from paceline.airflow import lineage

        found: OperatorLineage[Any, Any] = lineage.describe_check(self, self._summary)
        return found

    def _read_templates(self) -> None:
        try:
            read_fields(self, rendered=True)
        except InvalidInputError as error:
            raise AirflowFailException(str(error)) from error  # a retry cannot succeed

    def _check(self, *, rendered: bool = True) -> DriftCheck:
        """Return the check with the sensor's parameters, without template fields unless they are ``rendered``."""
        names = [name for name in CheckOptions.__annotations__ if rendered or name not in self.template_fields]
        return DriftCheck(**{"reference": "", "current": "", **{name: getattr(self, name) for name in names}})

    def _find_hold(self, context: Context) -> Hold | None:
        """Return why earlier training makes further training unnecessary now, or ``None``."""
        if self.cooldown is None and self.reference != CHAMPION:
            return None
        ti = context["ti"]
        earlier = load_started(ti, self.model)
        hold = find_hold(earlier, self._now(context), self.cooldown, lambda run: ti.get_dagrun_state(ti.dag_id, run))
        if hold is not None:
            self.log.info("Training does not start: %s", hold.reason)
        return hold

    def _alert(self, context: Context, summary: DriftSummary, hold: Hold | None = None) -> None:
        """Call ``on_drift_alert`` if the findings are new. A ``hold`` is added to the reason."""
        if not self.on_drift_alert:
            return
        reason = summary.reason if hold is None else f"{summary.reason} {_hold_note(hold)}"
        summary = summary.model_copy(update={"reason": reason, "retrain": summary.retrain})
        alert_once(self.on_drift_alert, context, summary, self.log, self._cleared)

    def _now(self, context: Context) -> datetime:
        """Return the time from which the cooldown and the age of rows are measured.

        For a scheduled sensor, it is the time of the run, so that a backfill gives equal results. For a
        waiting sensor, it is the current time.
        """
        return timezone.utcnow() if self.on_no_drift == "wait" else context["dag_run"].run_after

    def _finish(
        self, context: Context, hold: Hold | None, summary: DriftSummary, report: DriftReport
    ) -> dict[str, Any]:
        """Publish the report, set the asset events and return the summary, or skip or fail the task.

        ``hold`` is the reason why earlier training makes further training unnecessary.
        """
        ti, now, reason = context["ti"], self._now(context), summary.reason
        retrain = summary.needs_training and hold is None
        if hold is not None:
            note = _hold_note(hold)
            reason = f"{reason} {note}"
            report = replace(report, notes=(*report.notes, note))
        summary = self._summary = summary.model_copy(update={"reason": reason, "retrain": retrain, "at": now})
        send_check(self, summary, ti.map_index)
        result = summary.to_json()
        if self.report_dir:
            self.log.info("Report: %s", summary.report_html)
            if self.report_url:
                relative = (summary.report_html or "").removeprefix(str(_storage_path(self.report_dir))).lstrip("/")
                self.report_link = f"{self.report_url.rstrip('/')}/{relative}"
        ti.xcom_push(key=DRIFT_XCOM, value=True)
        ti.xcom_push(key="report", value=fit_to_xcom(report))
        ti.xcom_push(key="window", value=summary.window and summary.window.to_json())
        self._alert(context, summary)
        if retrain:
            record_started(ti, self.model, now)
            for outlet in self.outlets:
                if isinstance(outlet, Asset):
                    context["outlet_events"][outlet].extra = result
            return result
        if summary.verdict == "bad data" and self.on_bad_data == "fail":
            ti.xcom_push(key="return_value", value=result)
            raise BadDataError(reason)
        if summary.verdict == "nothing compared":
            ti.xcom_push(key="return_value", value=result)
            raise NothingComparedError(reason)
        # Airflow emits an event for every outlet of a successful task. If no training starts, emit no event.
        self.outlets = []
        if self.on_no_drift == "skip":
            ti.xcom_push(key="return_value", value=result)
            raise AirflowSkipException(reason)
        return result


def _hold_note(hold: Hold) -> str:
    return f"Training does not start: {hold.reason}."


def _storage_path(url: str) -> Any:
    from airflow.sdk import ObjectStoragePath

    return ObjectStoragePath(url)
