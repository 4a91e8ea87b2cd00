"""Stores drift reports as ``report.json`` and ``report.html`` in a folder for each run, and links to the folder.

``DriftSensor`` and ``DriftEventTrigger`` write reports. A retry overwrites the files of an earlier try.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperatorLink

from paceline.airflow.places import check_kept, safe_name
from paceline.airflow.windows import CHAMPION, is_sql
from paceline.contract import DriftSummary, WindowSource
from paceline.drift.kept_rows import to_storable

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, ObjectStoragePath
    from airflow.sdk.types import TaskInstanceKey

    from paceline.airflow.windows import DataWindow
    from paceline.drift import DriftReport

    from .check import DriftCheck


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
) -> DriftSummary:
    """Return a report's ``summary`` with the model and the current window's source.

    With ``report_dir``, write the report. If the reference is the champion, also write the compared rows of the window,
    which then become its source: a query or a file may have different rows later. The window of a file also has the
    file and its state, which shows a later change.
    """
    source = check.window()
    written = write_report(report, report_dir, *parts) if report_dir else {}
    if report_dir and report.needs_training and check.reference == CHAMPION:
        if check.actual is not None and check.actual not in window.frame:
            # Later checks expect the column in one of their windows.
            window = replace(window, frame=window.frame.assign(**{check.actual: None}))
        source = WindowSource(source=write_window(window, report_dir, *parts, categorical=check.categorical))
    if not is_sql(check.current) and check.window_column is None:
        source = source.model_copy(update={"file": check.current, "file_state": window.identity})
    found = {"model": check.model, "registry": check.registry, "window": source, **written}
    return report.summary().model_copy(update=found)


def write_window(window: DataWindow, report_dir: str, *parts: str, categorical: Collection[str] = ()) -> str:
    """Write the rows of a window to ``report_dir/parts…/window.parquet``, and return the path."""
    path = _folder(report_dir, *parts) / "window.parquet"
    with path.open("wb") as stream:  # type: ignore[no-untyped-call]
        to_storable(window.frame, categorical).to_parquet(stream, index=False)
    return str(path)


def run_folder(ti: Any) -> list[str]:
    """Return a task instance's folder below ``report_dir``, as path components. All tries use the same folder."""
    mapped = [str(ti.map_index)] if ti.map_index is not None and ti.map_index >= 0 else []
    return [ti.dag_id, ti.run_id, ti.task_id, *mapped]


def _folder(report_dir: str, *parts: str) -> ObjectStoragePath:
    from airflow.sdk import ObjectStoragePath

    check_kept("report_dir", report_dir)
    folder = ObjectStoragePath(report_dir).joinpath(*(safe_name(part) for part in parts))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


class DriftReportLink(BaseOperatorLink):
    """The button "Drift report" on the page of a task with a ``report_url``."""

    name = "Drift report"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Return the URL of the task's report, or "" without a report."""
        return str(getattr(operator, "report_link", ""))
