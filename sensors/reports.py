"""Storage of drift reports: ``report.json`` and ``report.html`` in one folder for each run, and the link to it.

Called by ``DriftSensor`` and ``DriftEventTrigger``. A retry overwrites the two files of the earlier try.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperatorLink

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey

    from paceline.drift import DriftReport

XCOM_LIMIT_BYTES = 48_000


def write_report(report: DriftReport, report_dir: str, *parts: str) -> dict[str, str]:
    """Write both files below ``report_dir/parts…``; return their paths as ``report_json`` and ``report_html``."""
    from airflow.sdk import ObjectStoragePath

    from paceline.drift import to_html

    folder = ObjectStoragePath(report_dir).joinpath(*(_file_name(part) for part in parts))
    folder.mkdir(parents=True, exist_ok=True)
    written = {}
    for name, text in (("json", json.dumps(report.to_dict(), indent=1)), ("html", to_html(report))):
        path = folder / f"report.{name}"
        with path.open("wb") as stream:  # type: ignore[no-untyped-call]
            stream.write(text.encode())
        written[f"report_{name}"] = str(path)
    return written


def fit_to_xcom(report: dict[str, Any], limit_bytes: int = XCOM_LIMIT_BYTES) -> dict[str, Any]:
    """Return a report small enough for XCom: features without drift are left out first, with a note.

    >>> features = [{"name": "a", "verdict": "drift"}, {"name": "b", "verdict": "no drift", "reason": "x" * 90}]
    >>> short = fit_to_xcom({"features": features, "notes": []}, limit_bytes=100)
    >>> [feature["name"] for feature in short["features"]], short["notes"]
    (['a'], ['1 feature is left out here; the written report has all.'])
    """
    features = list(report["features"])
    kept = {**report, "features": features}
    while features and len(json.dumps(kept)) > limit_bytes:
        features.pop()  # the least severe is the last
    left_out = len(report["features"]) - len(features)
    if left_out:
        are = "feature is" if left_out == 1 else "features are"
        kept["notes"] = [*report["notes"], f"{left_out} {are} left out here; the written report has all."]
    return kept


def run_folder(ti: Any) -> list[str]:
    """Return a task instance's folder below ``report_dir``: one for each run and mapped index, not for each try."""
    mapped = [str(ti.map_index)] if ti.map_index is not None and ti.map_index >= 0 else []
    return [ti.dag_id, ti.run_id, ti.task_id, *mapped]


def _file_name(part: str) -> str:
    """Return ``part`` with only the characters that every file system and object store accepts.

    >>> _file_name("manual__2026-01-01T00:00:00+00:00")
    'manual__2026-01-01T00_00_00_00_00'
    """
    return re.sub(r"[^A-Za-z0-9._-]+", "_", part).lstrip(".") or "_"


class DriftReportLink(BaseOperatorLink):
    """The button "Drift report" on a task's page, if ``report_url`` is set."""

    name = "Drift report"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Return the URL of the task's report, "" without one."""
        return str(getattr(operator, "report_link", ""))
