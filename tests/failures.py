"""The report of a failed test: the last lines of the logs of Airflow and containers, and the events of training jobs.

``tests/conftest.py`` calls ``report_sections`` while the test's Airflow and containers still exist.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.airflow.api import AirflowApiError
from paceline.runtime.docker import LABEL_JOB

if TYPE_CHECKING:
    import docker
    from demo.airflow_process import AirflowProcess

MAX_LINES = 40
MAX_LOGS = 6


def report_sections(
    airflow: AirflowProcess | None, engine: docker.APIClient | None, since_s: float
) -> Iterator[tuple[str, str]]:
    """Yield the title and text of each log and of each job's events since ``since_s`` (Unix time)."""
    if airflow is not None:
        logs = [path for path in airflow.home.glob("logs/dag_id=*/**/*.log") if path.stat().st_mtime >= since_s]
        for path in sorted(logs, key=lambda path: path.stat().st_mtime)[-MAX_LOGS:]:
            yield f"log of {path.relative_to(airflow.home / 'logs')}", _read_tail(path)
        for dag_id, run_id, task_id in sorted({_task_from_path(path) for path in logs}):
            with contextlib.suppress(AirflowApiError, OSError):
                if history := airflow.task_state(dag_id, run_id, task_id, "history"):
                    yield f"events of {dag_id} {run_id} {task_id}", "\n".join(map(json.dumps, history["events"]))
    if engine is not None:
        for one in engine.containers(all=True, filters={"label": LABEL_JOB})[:MAX_LOGS]:
            if one["Created"] >= since_s - 1:
                log = engine.logs(one["Id"], tail=MAX_LINES).decode(errors="replace")
                yield f"container {one['Names'][0]}: {one['Status']}", log


def _task_from_path(path: Path) -> tuple[str, str, str]:
    """Return the DAG, run and task ids in the path of a log file."""
    named = dict(part.split("=", 1) for part in path.parts if "=" in part)
    return named.get("dag_id", ""), named.get("run_id", ""), named.get("task_id", "")


def _read_tail(path: Path) -> str:
    return "\n".join(_format_line(line) for line in path.read_text(errors="replace").splitlines()[-MAX_LINES:])


def _format_line(line: str) -> str:
    """Format one JSON line of a task's log."""
    try:
        event = json.loads(line)
    except ValueError:
        return line
    if not isinstance(event, dict):
        return line
    details = {key: value for key, value in event.items() if key not in ("timestamp", "level", "event", "logger")}
    text = f"{event.get('timestamp', '')} {event.get('level', '')} {event.get('event', '')}"
    return text + (f" {json.dumps(details, default=str)[:2000]}" if details else "")
