"""The report of a failed test contains the logs, events and containers of the test."""

from __future__ import annotations

import json
import os
from types import SimpleNamespace

from tests.failures import MAX_LINES, report_sections


def fake_airflow_with_logs(home):
    folder = home / "logs" / "dag_id=retrain" / "run_id=manual" / "task_id=train"
    folder.mkdir(parents=True)
    lines = [json.dumps({"timestamp": "12:00", "level": "info", "event": f"line {number}"}) for number in range(99)]
    (folder / "attempt=1.log").write_text("\n".join([*lines, "no JSON"]))
    (folder / "attempt=0.log").write_text("of an earlier test")
    os.utime(folder / "attempt=0.log", (1, 1))
    history = {"events": [{"t_s": 3.0, "kind": "resumed"}]}
    return SimpleNamespace(home=home, task_state=lambda *keys: history if keys[3] == "history" else None)


class FakeEngine:
    def containers(self, **_):
        return [
            {"Id": "new", "Names": ["/paceline-new"], "Status": "Exited (137)", "Created": 200},
            {"Id": "old", "Names": ["/paceline-old"], "Status": "Up", "Created": 10},
        ]

    def logs(self, container, tail):
        return f"{container} wrote {tail} lines".encode()


def test_failure_report_has_log_tails_events_and_containers(tmp_path):
    sections = dict(report_sections(fake_airflow_with_logs(tmp_path), FakeEngine(), since_s=100.0))
    log = sections.pop("log of dag_id=retrain/run_id=manual/task_id=train/attempt=1.log").splitlines()
    assert (len(log), log[0], log[-1]) == (MAX_LINES, "12:00 info line 60", "no JSON")
    assert sections == {
        "events of retrain manual train": '{"t_s": 3.0, "kind": "resumed"}',
        "container /paceline-new: Exited (137)": f"new wrote {MAX_LINES} lines",
    }
