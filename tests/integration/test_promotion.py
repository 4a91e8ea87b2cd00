"""Evaluation and promotion in a real Airflow store their results in XCom. Only a promotion emits an event."""

from __future__ import annotations

import contextlib
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from demo.airflow_process import AirflowProcess
from tests.integration.training import gates
from tests.waiting import LONG_S

from paceline.airflow import cli
from paceline.airflow.api import AirflowApiError
from paceline.registry import FileRegistry

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(1200)]

DAG = """
from airflow.sdk import DAG, Asset
from paceline.operators import EvaluateOperator, PromoteOperator

class ReviewedPromotion(PromoteOperator):
    pass  # as a user may write it

with DAG("judge", schedule=None, params={"challenger": "", "min_improvement": 0}):
    evaluate = EvaluateOperator(
        task_id="evaluate", model="promoted", registry="REGISTRY", challenger="{{ params.challenger }}",
        data={"holdout.csv": __file__}, script="score.py", metric="auc", runtime="process",
        data_window={"until": "{{ run_id }}"},
    )
    ReviewedPromotion(
        task_id="promote", registry="REGISTRY", evaluation=evaluate.output,
        min_improvement="{{ params.min_improvement }}", outlets=[Asset("champion")],
    )
"""
SCORE = """
from paceline.train import input_dir, report
report(auc=float((input_dir() / "model" / "auc").read_text()))
"""


@pytest.fixture
def registry(airflow: AirflowProcess, tmp_path: Path) -> Iterator[FileRegistry]:
    """Add the DAG above to Airflow, and yield its model registry."""
    registry = tmp_path / "registry"
    (airflow.dags_folder / "score.py").write_text(SCORE)
    with gates.temporary_dag(airflow, "judge", DAG.replace("REGISTRY", str(registry))):
        yield FileRegistry(registry)
    (airflow.dags_folder / "score.py").unlink()


def test_only_a_better_challenger_replaces_the_champion_and_emits_an_event(
    airflow: AirflowProcess, registry: FileRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = []
    for auc, min_improvement in ((0.70, 0), (0.72, 0.05), (0.78, 0.05)):
        model = tmp_path / f"model-{auc}"
        model.mkdir()
        (model / "auc").write_text(str(auc))
        run_id = airflow.run_dag("judge", {"challenger": str(model), "min_improvement": min_improvement})
        state = airflow.wait("judge", run_id, LONG_S)
        log = airflow.task_log("judge", run_id, "promote")
        assert state == "success", "the task succeeds with any decision:\n" + log
        results.append(airflow.xcom("judge", run_id, "promote"))
        expected = "Promoted: version" if results[-1]["promoted"] else "Not promoted: version"
        assert expected in log
        assert registry.version("promoted", len(results)).data_window == {"until": run_id}

    assert [r["promoted"] for r in results] == [True, False, True]
    assert [r["champion_version"] for r in results] == [1, 1, 3]
    assert [p.version for p in registry.history("promoted")] == [1, 3]
    newest = [r for r in airflow.pages("/overview")["promotions"] if r["dag_id"] == "judge"]
    assert [r["value"] for r in newest] == results[::-1], "the overview shows the results of a subclass"
    what = {"dry_run": False, "dag_run_id": run_id, "task_ids": ["promote"], "only_failed": False}
    airflow.api("POST", "/dags/judge/clearTaskInstances", what)
    assert airflow.wait("judge", run_id, LONG_S) == "success"
    assert airflow.xcom("judge", run_id, "promote")["promoted"], "a cleared task reports its promotion again"
    # The cleared task does not emit a second event.
    sent = airflow.api("GET", "/assets/events", order_by="timestamp", source_dag_id="judge")["asset_events"]
    assert [event["extra"]["version"] for event in sent] == [1, 3]
    assert sent[1]["extra"]["previous_version"] == 1

    monkeypatch.setenv("PACELINE_AIRFLOW_PASSWORD", airflow.passwords["admin"])
    back = ["model", "rollback", str(registry.root), "promoted", "--reason", "worse", "--asset", "champion"]
    assert cli.main([*back, "--url", airflow.url, "--user", "admin"]) == 0
    event = airflow.api("GET", "/assets/events", order_by="-timestamp", limit=1)["asset_events"][0]
    assert (event["name"], event["extra"]["version"], event["extra"]["reason"]) == ("champion", 1, "worse (admin)")
    airflow.api("POST", "/dags/judge/clearTaskInstances", what)
    assert airflow.wait("judge", run_id, LONG_S) == "success"
    assert airflow.xcom("judge", run_id, "promote")["verdict"] == "champion held"
    assert registry.champion("promoted") == registry.version("promoted", 1)


@pytest.mark.parametrize("answer", ["Approve", "Reject"])
def test_approval_is_for_the_version_in_the_question(
    airflow: AirflowProcess, project: Path, tmp_path: Path, answer: str
) -> None:
    """The example in docs/registry.md works unchanged, even if the evaluation runs again before the answer."""
    examples = re.findall(r"```python\n(.*?)```", (project / "docs" / "registry.md").read_text(), re.DOTALL)
    example = next(text for text in examples if "ApproveOperator" in text)
    dag_id = f"approve_{answer.lower()}"
    text = DAG[: DAG.index("    ReviewedPromotion(")].replace('"judge"', f'"{dag_id}"')
    text += textwrap.indent(example.replace("s3://aws_default@models/registry", "REGISTRY"), "    ")
    # Airflow may mark a task as failed if the answer comes before the executor has reported the end of the process that
    # asked. People answer later than this test. The next try asks again.
    text = text.replace("schedule=None", 'schedule=None, default_args={"retries": 9, "retry_delay": 1.0}')
    (airflow.dags_folder / "score.py").write_text(SCORE)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "auc").write_text("0.8")
    registry = FileRegistry(tmp_path / "registry")
    with gates.temporary_dag(airflow, dag_id, text.replace("REGISTRY", str(tmp_path / "registry"))):
        run_id = airflow.run_dag(dag_id, {"challenger": str(tmp_path / "model")})
        airflow.wait_for_task(dag_id, run_id, "approve", "awaiting_input", LONG_S)
        question = f"/dags/{dag_id}/dagRuns/{quote(run_id)}/taskInstances/approve/-1/hitlDetails"
        asked = airflow.api("GET", question)
        assert asked["subject"] == "Promote promoted version 1?"
        assert "| **auc** | 0.8 |" in asked["body"]
        (tmp_path / "model" / "auc").write_text("0.5")
        again = {"dry_run": False, "dag_run_id": run_id, "task_ids": ["evaluate"], "only_failed": False}
        airflow.api("POST", f"/dags/{dag_id}/clearTaskInstances", again)
        airflow.wait_for_task(dag_id, run_id, "evaluate", "success", LONG_S)
        assert registry.versions("promoted")[-1].metrics == {"auc": 0.5}

        def answer_question() -> None:
            if airflow.task_states(dag_id, run_id)["approve"] == "awaiting_input":
                with contextlib.suppress(AirflowApiError):  # this try has its answer
                    airflow.api("PATCH", question, {"chosen_options": [answer]})

        assert airflow.wait(dag_id, run_id, LONG_S, before_poll=answer_question) == "success"
        answered = airflow.api("GET", question)["subject"]  # about version 1, if the task had one try
        states = airflow.task_states(dag_id, run_id)
    (airflow.dags_folder / "score.py").unlink()
    history = registry.history("promoted")
    if answer == "Reject":
        assert (states["promote"], history) == ("skipped", [])
        return
    assert [f"Promote promoted version {promotion.version}?" for promotion in history] == [answered]
    assert "approved by" in history[-1].reason


def test_airflow_dags_test_trains_and_promotes(airflow: AirflowProcess, tmp_path: Path) -> None:
    registry, folder = tmp_path / "registry", airflow.dags_folder
    text = f"""
from airflow.sdk import DAG
from paceline.operators import DeadlineTrainingOperator, EvaluateOperator, PromoteOperator

with DAG("tried", schedule=None):
    train = DeadlineTrainingOperator(
        task_id="train", script="train_tried.py", runtime="process", deadline="5m", deferrable=True,
        output={str(tmp_path / "out")!r},
    )
    evaluate = EvaluateOperator(
        task_id="evaluate", model="tried", registry={str(registry)!r}, data={{"holdout.csv": __file__}},
        challenger="{{{{ ti.xcom_pull('train')['model'] }}}}", script="score.py", metric="auc", runtime="process",
    )
    train >> evaluate >> PromoteOperator(task_id="promote", registry={str(registry)!r}, evaluation=evaluate.output)
"""
    train = """
        from paceline.train import output_dir, track
        for _ in track(range(10)):
            pass
        (output_dir() / "auc").write_text("0.7")
    """
    (folder / "train_tried.py").write_text(textwrap.dedent(train))
    (folder / "score.py").write_text(SCORE)
    with gates.temporary_dag(airflow, "tried", text):
        tried = airflow.cli("dags", "test", "tried", timeout_s=LONG_S)
    (folder / "train_tried.py").unlink()
    (folder / "score.py").unlink()
    assert tried.returncode == 0, tried.stdout
    assert FileRegistry(registry).champion("tried").metrics["auc"] == 0.7
