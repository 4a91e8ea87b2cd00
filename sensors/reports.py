"""Stores drift reports as ``report.json`` and ``report.html`` in a folder for each run, and links to the folder.

``DriftSensor`` and ``DriftEventTrigger`` write reports. A retry overwrites the files of an earlier try.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperatorLink

from paceline.airflow.places import check_kept
from paceline.airflow.windows import CHAMPION, is_sql
from paceline.drift.kept_rows import to_storable

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, ObjectStoragePath
    from airflow.sdk.types import TaskInstanceKey

    from paceline.airflow.windows import DataWindow
    from paceline.drift import DriftReport

    from .check import DriftCheck

XCOM_LIMIT_BYTES = 48_000
_NOTES_BYTES = 300  # reserved for the notes about omissions


def write_report(report: DriftReport, report_dir: str, *parts: str) -> dict[str, str]:
    """Write both files to ``report_dir/parts…``. Return the paths as ``report_json`` and ``report_html``."""
    from paceline.drift import to_html

    folder = _folder(report_dir, *parts)
    written = {}
    for name, text in (("json", json.dumps(report.to_dict(), indent=1)), ("html", to_html(report))):
        path = folder / f"report.{name}"
        with path.open("wb") as stream:  # type: ignore[no-untyped-call]
            stream.write(text.encode())
        written[f"report_{name}"] = str(path)
    return written


def summarise(
    check: DriftCheck, report: DriftReport, window: DataWindow, report_dir: str | None, *parts: str
) -> dict[str, Any]:
    """Return a report's ``summary`` with the model and the current window's source; and the ``report``, cut for XCom.

    With ``report_dir``, write the report. If the reference is the champion, also write the compared rows of the window,
    which then become its source: a query or a file may have different rows later. The window of a file also has the
    file and its state, which shows a later change.
    """
    summary = report.summary() | {"model": check.model, "registry": check.registry, "window": check.window()}
    if report_dir:
        summary |= write_report(report, report_dir, *parts)
        if report.needs_training and check.reference == CHAMPION:
            if check.actual is not None and check.actual not in window.frame:
                # Later checks expect the column in one of their windows.
                window = replace(window, frame=window.frame.assign(**{check.actual: None}))
            summary["window"] = {"source": write_window(window, report_dir, *parts, categorical=check.categorical)}
    if not is_sql(check.current) and check.window_column is None:
        summary["window"] |= {"file": check.current, "file_state": window.identity}
    return {"summary": summary, "report": fit_to_xcom(report.to_dict())}


def write_window(window: DataWindow, report_dir: str, *parts: str, categorical: Collection[str] = ()) -> str:
    """Write the rows of a window to ``report_dir/parts…/window.parquet``, and return the path."""
    path = _folder(report_dir, *parts) / "window.parquet"
    with path.open("wb") as stream:  # type: ignore[no-untyped-call]
        to_storable(window.frame, categorical).to_parquet(stream, index=False)
    return str(path)


def fit_to_xcom(report: dict[str, Any], limit_bytes: int = XCOM_LIMIT_BYTES) -> dict[str, Any]:
    """Shorten a report so that it is small enough for XCom.

    First omit features without drift, then the histograms of the least severe drifted features, then those features,
    then the least severe data quality problems. Notes state how many are omitted.

    >>> features = [{"name": "a", "verdict": "drift", "histogram": "x" * 90}, {"name": "b", "verdict": "no drift"}]
    >>> short = fit_to_xcom({"features": features, "notes": []}, limit_bytes=200)
    >>> short["features"], short["notes"]
    ([{'name': 'a', 'verdict': 'drift'}], ['1 feature is omitted here; the stored report contains all features.'])
    """
    features = report["features"]
    if len(json.dumps(report)) <= limit_bytes:
        return report
    report = _limit_quality(report, limit_bytes)
    note = "{} features are omitted here; the stored report contains all features."
    longest_note = note.format(len(features))
    left = limit_bytes - len(json.dumps({**report, "features": [], "notes": [*report["notes"], longest_note]}))
    kept: dict[int, dict[str, Any]] = {}
    # The features are sorted by severity, drifted features first.
    drifted = sum(feature["verdict"] == "drift" for feature in features)
    plain = [{key: value for key, value in one.items() if value and key != "histogram"} for one in features[:drifted]]
    for entries in (plain, features):  # first the drifted features without histograms, then whole features
        for number, entry in enumerate(entries):
            size = len(json.dumps(entry)) + 2
            size -= len(json.dumps(kept[number])) + 2 if number in kept else 0
            if size > left:
                break
            kept[number] = entry
            left -= size
    omitted = len(features) - len(kept)
    note = note.format(omitted) if omitted != 1 else note.format(1).replace("features are", "feature is")
    return {**report, "features": list(kept.values()), "notes": [*report["notes"], *([note] if omitted else [])]}


def _limit_quality(report: dict[str, Any], limit_bytes: int) -> dict[str, Any]:
    """Omit the last data quality problems if the report without features is too large."""
    kept = list(report.get("quality", ()))
    excess = len(json.dumps({**report, "features": []})) + _NOTES_BYTES - limit_bytes
    while excess > 0 and kept:
        excess -= len(json.dumps(kept.pop())) + 2
    omitted = len(report.get("quality", ())) - len(kept)
    if not omitted:
        return report
    note = f"Data quality problems that are omitted here, but not in the stored report: {omitted}."
    return {**report, "quality": kept, "notes": [*report["notes"], note]}


def run_folder(ti: Any) -> list[str]:
    """Return a task instance's folder below ``report_dir``, as path components. All tries use the same folder."""
    mapped = [str(ti.map_index)] if ti.map_index is not None and ti.map_index >= 0 else []
    return [ti.dag_id, ti.run_id, ti.task_id, *mapped]


def _folder(report_dir: str, *parts: str) -> ObjectStoragePath:
    from airflow.sdk import ObjectStoragePath

    check_kept("report_dir", report_dir)
    folder = ObjectStoragePath(report_dir).joinpath(*(_file_name(part) for part in parts))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _file_name(part: str) -> str:
    """Return ``part`` without the characters that some file systems and object stores reject.

    A digest distinguishes names with non-ASCII characters, of which little else may remain.

    >>> _file_name("manual__2026-01-01T00:00:00+00:00"), _file_name("prüfung")
    ('manual__2026-01-01T00_00_00_00_00', 'pr_fung-39d8b3b1')
    """
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", part).lstrip(".") or "_"
    return name if part.isascii() else f"{name}-{hashlib.sha256(part.encode()).hexdigest()[:8]}"


class DriftReportLink(BaseOperatorLink):
    """The button "Drift report" on the page of a task with a ``report_url``."""

    name = "Drift report"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Return the URL of the task's report, or "" without a report."""
        return str(getattr(operator, "report_link", ""))
