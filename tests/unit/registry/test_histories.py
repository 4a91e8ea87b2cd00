"""Random histories of evaluations, promotions, approvals, rollbacks and accidents: the rules chose the champion.

The registry is a folder, an S3 server or an MLflow server.
"""

from __future__ import annotations

import argparse
import random
import uuid
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from airflow.providers.standard.operators import hitl
from airflow.sdk import Asset
from airflow.sdk.exceptions import AirflowFailException, TaskAwaitingInput
from airflow.sdk.execution_time.context import OutletEventAccessors
from tests.unit.registry.stores import Store

from paceline.airflow import _model_command as model_command
from paceline.errors import InvalidInputError
from paceline.operators import ApproveOperator, PromoteOperator
from paceline.operators import promote as promote_module
from paceline.registry import ModelVersion, storage
from paceline.run import MemoryState

_BEGAN = datetime(2026, 1, 1, tzinfo=timezone.utc)
_STEPS = {"local": 200, "object store": 40, "mlflow": 25}
CHAMPION = Asset("champion")


class Airflow:
    """The part of Airflow's API with which ``paceline model`` sends an event."""

    def __init__(self) -> None:
        self.versions: list[int] = []

    def api(self, method: str, path: str, body: Any = None, **query: Any) -> Any:
        if method == "POST":
            self.versions.append(body["extra"]["version"])
        return {"assets": [{"id": 1, "name": CHAMPION.name}]}


class TaskInstance:
    """The XComs of a task of an evaluation's run, without those of its other tasks."""

    task_id, map_index = "approve", -1

    def __init__(self) -> None:
        self.id, self.values = uuid.uuid4(), dict[str, Any]()

    def xcom_push(self, key: str, value: Any) -> None:
        self.values[key] = value

    def xcom_pull(self, task_ids: str, key: str, map_indexes: int) -> Any:
        assert (task_ids, map_indexes) == (self.task_id, self.map_index)
        return self.values[key]


class Killed(BaseException):
    """Ends a call in the middle, like the end of its process."""


class History:
    """A registry, and the champion that follows from the steps so far.

    The content of a version is its score, so a version with the digest of an evaluation has the evaluated score.
    """

    def __init__(self, store: Store, name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
        self.store, self.name, self.folder, self.patch = store, name, folder, monkeypatch
        self.random = random.Random(seed)
        self.evaluations: list[dict[str, Any]] = []
        self.questions: list[tuple[TaskInstance, dict[str, Any]]] = []  # without an answer, and their evaluations
        self.digest: str | None = None  # of the champion
        self.held = False
        self.changes = 0
        self.deleted: set[int] = set()
        self.verdicts: set[str] = set()
        self.approved: set[str] = set()  # verdicts about approved versions

    def evaluate(self, *, kill: bool = False, again: dict[str, Any] | None = None) -> None:
        registry, number = self.store.open(), len(self.evaluations)
        try:
            champion = registry.champion(self.name)
        except InvalidInputError:  # its version was deleted
            assert self.digest is not None
            return
        better_by, backfill = self.random.randrange(-3, 4), self.random.choice([0, 0, 9])
        score = better_by + (champion.metrics["auc"] if champion else 0) if again is None else again["challenger"]
        (self.folder / "score").write_text(str(score))
        arguments: dict[str, Any] = {
            "name": self.name,
            "metrics": {"auc": score},
            "lineage": {"data_until": (_BEGAN + timedelta(days=number - backfill)).isoformat()},
            "key": f"key-{number}" if again is None else again["key"],
        }
        if kill:
            with self.patch.context() as patch:
                patch.setattr(storage, "open_file", Mock(side_effect=Killed))
                with pytest.raises(Killed):
                    registry.register(self.folder, **arguments)
        version = registry.register(self.folder, **arguments)
        old = None if champion is None else champion.metrics["auc"]
        self.evaluations.append(
            {
                "model": self.name, "version": version.version, "digest": version.digest, "key": arguments["key"],
                "metric": "auc", "challenger": score, "champion": old,
                "champion_version": None if champion is None else champion.version,
                "champion_digest": None if champion is None else champion.digest,
                "improvement": None if old is None else score - old,
            }
        )  # fmt: skip

    def promote_as_task(self) -> None:
        """Run the task of an evaluation, perhaps of an earlier one that someone has cleared."""
        if not self.evaluations:
            return
        newest = self.random.random() < 0.7
        self.decide(self.evaluations[-1] if newest else self.random.choice(self.evaluations))

    def ask(self) -> None:
        if self.evaluations:
            ti, evaluation = TaskInstance(), self.evaluations[-1]
            with pytest.raises(TaskAwaitingInput):
                ApproveOperator(task_id="approve", evaluation=evaluation).execute(_context(ti))
            self.questions.append((ti, evaluation))

    def answer(self) -> None:
        """Answer a question. Its evaluation may have run again since, so the template has another value now."""
        if not self.questions:
            return
        ti, asked = self.questions.pop(self.random.randrange(len(self.questions)))
        choice = self.random.choice(["Approve", "Approve", "Reject"])
        event = {
            "chosen_options": [choice], "params_input": {}, "responded_at": _BEGAN,
            "responded_by_user": {"id": "1", "name": "anna"},
        }  # fmt: skip
        task = ApproveOperator(task_id="approve", evaluation=self.evaluations[-1])
        result = task.execute_complete(_context(ti), event)
        if choice == "Approve":
            assert (result["version"], result["digest"]) == (asked["version"], asked["digest"])
            self.decide(result)

    def decide(self, evaluation: dict[str, Any]) -> None:
        """Run the promotion task, which follows from an evaluation or an approval."""
        task = PromoteOperator(task_id="promote", evaluation=evaluation, registry="/registry", outlets=[CHAMPION])
        context: Any = {"ti": Mock(spec=["xcom_push"]), "outlet_events": OutletEventAccessors()}
        before = self.champion()
        try:
            result = task.execute(context)
        except AirflowFailException:  # the evaluated version, or the champion, was deleted
            assert self.deleted
            return
        self.verdicts.add(result["verdict"])
        if "approved_by" in evaluation:
            self.approved.add(result["verdict"])
            assert result["verdict"] != "better" or "approved by anna" in result["reason"]
        assert bool(task.outlets) is result["promoted"], "each promotion has an event, and nothing else has"
        if result["verdict"] == "already champion":
            assert before is not None
            assert before.version == evaluation["version"]
        elif result["promoted"]:
            assert not self.held
            assert (before.version if before else None) == evaluation["champion_version"]
            assert before is None or evaluation["challenger"] > before.metrics["auc"]
            assert before is None or self.until(evaluation) >= before.lineage["data_until"]
            self.note(evaluation["digest"], held=False)

    def until(self, evaluation: dict[str, Any]) -> Any:
        return self.store.open().version(self.name, evaluation["version"]).lineage["data_until"]

    def promote_as_person(self) -> None:
        versions = self.store.open().versions(self.name)
        if not versions:
            return
        version, hold = self.random.choice(versions), self.random.random() < 0.3
        with suppress(InvalidInputError):
            if self.champion() == version and self.held == hold:
                return
        airflow = Airflow()
        options = argparse.Namespace(
            model=self.name, reason="chosen", asset=CHAMPION.name, user="anna", signing_conn_id=None,
            connect=lambda options: airflow,
        )  # fmt: skip
        model_command._change(options, self.store.open(), version.version, hold=hold)
        assert airflow.versions == [version.version], "the change has one event"
        self.note(version.digest, held=hold)

    def delete_by_hand(self) -> None:
        versions = self.store.open().versions(self.name)
        if len(versions) < 3:
            return
        version = self.random.choice(versions)
        if version.digest == self.digest and self.random.random() < 0.8:
            return
        self.deleted.add(version.version)
        self.store.delete(version)

    def note(self, digest: str | None, *, held: bool) -> None:
        self.digest, self.held = digest, held
        self.changes += 1

    def champion(self) -> ModelVersion | None:
        return self.store.open().champion(self.name)

    def check(self) -> None:
        """Raise AssertionError unless the registry has the champion, and as many promotions, as were expected."""
        assert len(self.store.open().history(self.name)) == self.changes
        try:
            champion = self.champion()
        except InvalidInputError:
            assert self.deleted, "only a deleted champion is an error"
        else:
            assert (champion.digest if champion else None) == self.digest
            assert champion is None or champion.version not in self.deleted

    def step(self) -> None:
        rare = ["delete", "kill", "again"]
        step = self.random.choice(["evaluate", "promote"] * 4 + ["person", "ask", "answer"] * 2 + rare)
        if step == "evaluate":
            self.evaluate()
        elif step == "kill":
            self.evaluate(kill=True)
        elif step == "again" and self.evaluations:
            self.evaluate(again=self.random.choice(self.evaluations))
        elif step == "promote":
            with suppress(InvalidInputError):  # the champion's version was deleted
                self.promote_as_task()
        elif step == "person":
            self.promote_as_person()
        elif step == "ask":
            self.ask()
        elif step == "answer":
            with suppress(InvalidInputError):
                self.answer()
        elif step == "delete":
            self.delete_by_hand()


def _context(ti: TaskInstance) -> Any:
    return {"ti": ti, "task_instance": ti, "task_state_store": MemoryState()}


@pytest.mark.parametrize("seed", [1, 2])
def test_champion_was_chosen_by_a_person_or_by_a_score_of_its_own(
    store: Store, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setattr(promote_module, "open_registry", lambda *arguments: store.open())
    monkeypatch.setattr(promote_module, "_was_sent", lambda context, outlet: False)  # needs a supervisor process
    monkeypatch.setattr(hitl, "upsert_hitl_detail", Mock())  # the same
    (tmp_path / "model").mkdir()
    history = History(store, name, tmp_path / "model", monkeypatch, seed)
    kind = request.node.callspec.params["store"]
    for _ in range(_STEPS[kind]):
        history.step()
        history.check()
    if kind == "local":
        assert {"better", "not better", "older data", "champion held", "champion changed"} <= history.verdicts
        assert {"better", "champion changed"} <= history.approved
