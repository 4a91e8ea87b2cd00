"""``ApproveOperator`` promotes the version that its question shows, also if Airflow runs it again meanwhile."""

from __future__ import annotations

import uuid
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.standard.operators import hitl
from airflow.sdk.exceptions import TaskAwaitingInput

from paceline.operators import ApproveOperator
from paceline.run import MemoryState

ANSWER = {
    "chosen_options": ["Approve"],
    "params_input": {},
    "responded_at": datetime(2026, 1, 5, tzinfo=timezone.utc),
    "responded_by_user": None,
}


def evaluation(version: int) -> dict[str, Any]:
    return {
        "model": "flights",
        "registry": "/registry",
        "version": version,
        "metric": "auc",
        "challenger": 0.5 + version / 10,
        "champion": None,
        "champion_version": None,
        "improvement": None,
    }


@pytest.mark.parametrize(("same_id", "approved"), [(True, 1), (False, 2)])
def test_second_try_asks_about_the_version_in_the_stored_question(
    monkeypatch: pytest.MonkeyPatch, same_id: bool, approved: int
) -> None:
    """Airflow stores one question for each id of a task instance, and shows it again to a second try with that id."""
    questions: dict[str, Any] = {}
    monkeypatch.setattr(hitl, "upsert_hitl_detail", lambda ti_id, **shown: questions.setdefault(str(ti_id), shown))
    store, values = MemoryState(), dict[str, Any]()
    ti = SimpleNamespace(
        id=uuid.uuid4(),
        task_id="approve",
        map_index=-1,
        xcom_push=lambda key, value: values.update({key: value}),
        xcom_pull=lambda task_ids, key, map_indexes: values[key],
    )
    for version in (1, 2):
        context: Any = {"ti": ti, "task_instance": ti, "task_state_store": store}
        task = ApproveOperator(task_id="approve", evaluation=evaluation(version))
        with pytest.raises(TaskAwaitingInput):
            task.execute(context)
        shown = questions[str(ti.id)]["subject"]
        if not same_id:
            ti.id = uuid.uuid4()
    assert shown == f"Promote flights version {approved}?"
    assert task.execute_complete(context, dict(ANSWER))["version"] == approved
