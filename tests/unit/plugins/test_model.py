"""The page of a model shows its versions, and changes the champion for users who may edit all DAGs of the model."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from airflow.api_fastapi.core_api import security
from airflow.models.xcom import XCOM_RETURN_KEY
from fastapi import FastAPI, HTTPException
from fastapi.testclient import TestClient
from sqlalchemy.orm import Session
from tests.mlflow_server import MlflowServer
from tests.unit.plugins.test_overview import promote_task, start_task

from paceline.contract import EVALUATION_XCOM, PROMOTION_XCOM
from paceline.plugins.web import _changes, _registries
from paceline.plugins.web import model as route
from paceline.plugins.web._registries import ModelReading, RegistryReader, read_models
from paceline.plugins.web.model import ChampionChange, ModelView, ShownPromotion
from paceline.registry import FileRegistry, MlflowRegistry

KEY = "k" * 32
ANNA = Mock(**{"get_name.return_value": "anna"})
Push = Callable[..., None]
WINDOW = {"source": "/data/2030-01.csv"}


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights").write_text("1")
    return tmp_path / "model"


@pytest.fixture
def registry(tmp_path: Path, model_dir: Path) -> FileRegistry:
    """Return a registry with three versions of the model "flights" from two DAGs; the second is the champion."""
    registry = FileRegistry(tmp_path / "models")
    for number, dag_id in ((1, "retrain"), (2, "retrain"), (3, "nightly")):
        lineage = {"dag_id": dag_id, "run_id": f"run-{number}", "evaluation": {}, "report": f"{number}.html"}
        registry.register(
            model_dir, name="flights", metrics={"auc": 0.7 + number / 100}, data_window=WINDOW, lineage=lineage
        )
    registry.promote("flights", 1, "first")
    registry.promote("flights", 2, "better")
    return registry


@pytest.fixture
def push(session: Session, monkeypatch: pytest.MonkeyPatch) -> Push:
    """Return a function that stores an evaluation by a DAG and the decision that followed."""
    monkeypatch.setattr(route, "_reader", RegistryReader(read_models, ModelReading, wait_s=3600, fresh_s=0.0))
    monkeypatch.setattr(route, "can_change", lambda user, dag_id: dag_id == "retrain")
    runs: list[str] = []

    def push(location: object, champion: int | None = 2, dag_id: str = "retrain", model: str = "flights") -> None:
        evaluation = {
            "model": model, "registry": str(location), "version": 2, "metric": "auc", "challenger": 0.72,
            "champion": 0.71, "champion_version": 1, "improvement": 0.01,
        }  # fmt: skip
        decision = {
            "promoted": True, "verdict": "better", "reason": "better", "model": model, "registry": str(location),
            "version": 2, "champion_version": champion, "previous_version": 1,
        }  # fmt: skip
        for key, value in ((EVALUATION_XCOM, evaluation), (PROMOTION_XCOM, decision)):
            runs.append(f"run-{len(runs)}")
            store = start_task(session, promote_task(dag_id), runs[-1])
            store(key=key, value=True)
            store(key=XCOM_RETURN_KEY, value=value)

    return push


def view(session: Session, registry: object, model: str = "flights") -> ModelView:
    return route.model_view(session, {"retrain"}, ANNA, str(registry), model)


def change(session: Session, registry: object, version: int = 1, seen: int | None = 2, **more: Any) -> ShownPromotion:
    body = {"registry": str(registry), "model": "flights", "version": version, "seen": seen, "reason": "wrong", **more}
    return route.change_champion(session, {"retrain"}, ANNA, ChampionChange.model_validate(body))


def test_versions_have_scores_origin_and_window_of_readable_dags_only(
    session: Session, registry: FileRegistry, push: Push
) -> None:
    push(registry.root)
    found = view(session, registry.root)
    hidden, second, _ = found.versions
    assert (found.reading.champion, found.refusal, found.older) == (2, None, False)
    assert (second.version, second.metrics, second.dag_id, second.run_id) == (2, {"auc": 0.72}, "retrain", "run-2")
    assert json.loads(second.window or "") == WINDOW
    assert json.loads(second.lineage or "") == {"report": "2.html"}
    assert (hidden.version, hidden.metrics, hidden.dag_id, hidden.window, hidden.lineage) == (3, {}, None, None, None)
    assert hidden.created_at is not None
    assert [(one.version, one.previous, one.reason) for one in found.promotions] == [
        (2, 1, "better"),
        (1, None, "first"),
    ]
    assert [one.value.challenger for one in found.evaluations] == [0.72]
    assert [one.value.verdict for one in found.decisions] == ["better"]


def test_model_that_no_readable_dag_names_is_not_read(session: Session, registry: FileRegistry, push: Push) -> None:
    push(registry.root, dag_id="nightly")
    push(registry.root.parent)
    push(registry.root, model="churn")
    for act in (view, change):
        with pytest.raises(HTTPException) as refused:
            act(session, registry.root)
        assert refused.value.status_code == 404
    assert registry.champion_number("flights") == 2


@pytest.mark.parametrize("kind", ["text", "huge"])
def test_damaged_manifest_is_shown_as_such_and_cannot_be_promoted(
    session: Session, registry: FileRegistry, push: Push, kind: str
) -> None:
    push(registry.root)
    manifest = Path(registry.root.path) / "flights" / "versions" / "000001" / "manifest.json"
    if kind == "text":
        manifest.write_text("root:secret")
    else:
        with manifest.open("wb") as file:
            file.truncate(1 << 40)
    found = view(session, registry.root)
    assert [one.created_at is None for one in found.versions] == [False, False, True]
    assert "secret" not in found.model_dump_json()
    with pytest.raises(HTTPException) as refused:
        change(session, registry.root)
    assert refused.value.status_code == 422


def test_rollback_stores_its_author_and_is_shown_at_once(
    session: Session, registry: FileRegistry, push: Push, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(registry.root)
    monkeypatch.setattr(route, "_reader", RegistryReader(read_models, ModelReading, wait_s=3600, fresh_s=3600))
    assert view(session, registry.root).reading.champion == 2
    promotion = change(session, registry.root, reason=" wrong on Sundays ", hold=True)
    assert (promotion.version, promotion.previous, promotion.hold) == (1, 2, True)
    assert promotion.reason == "wrong on Sundays (anna)"
    last = registry.last_promotion("flights")
    assert last is not None
    assert (last.version, last.reason, last.hold) == (1, promotion.reason, True)
    found = view(session, registry.root)
    assert (found.reading.champion, found.reading.held) == (1, True)
    released = change(session, registry.root, seen=1, reason="Sundays are fixed")
    assert (released.version, released.hold) == (1, False)


def test_earlier_champions_are_listed_however_many_versions_are_newer(
    session: Session, registry: FileRegistry, model_dir: Path, push: Push, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_registries, "_MOST_VERSIONS", 2)
    push(registry.root)
    registry.register(model_dir, name="flights", lineage={"dag_id": "retrain"})
    registry.register(model_dir, name="flights", lineage={"dag_id": "retrain"})
    found = view(session, registry.root)
    assert ([one.version for one in found.versions], found.older) == ([5, 4, 2, 1], True)
    assert [found.versions[2].metrics, found.versions[2].run_id] == [{"auc": 0.72}, "run-2"]
    change(session, registry.root, hold=True)
    assert change(session, registry.root, seen=1).hold is False
    registry.delete("flights", 2, check=lambda: None)
    assert [one.version for one in view(session, registry.root).versions] == [5, 4, 1]


def test_champion_that_has_changed_since_the_user_read_it_stays(
    session: Session, registry: FileRegistry, push: Push
) -> None:
    push(registry.root)
    registry.promote("flights", 3, "by a task")
    with pytest.raises(HTTPException, match="it is now version 3") as refused:
        change(session, registry.root)
    assert refused.value.status_code == 409
    assert registry.champion_number("flights") == 3


@pytest.mark.parametrize("body", [{"reason": "  "}, {"reason": "x" * 1001}, {"version": 0}, {"seen": 0}])
def test_change_needs_a_reason_and_a_version(session: Session, registry: FileRegistry, push: Push, body: Any) -> None:
    push(registry.root)
    with pytest.raises(ValueError, match=r"reason|version|seen"):
        change(session, registry.root, **body)


@pytest.mark.parametrize(("version", "status"), [(2, 409), (9, 422)])
def test_champion_itself_and_a_missing_version_are_refused(
    session: Session, registry: FileRegistry, push: Push, version: int, status: int
) -> None:
    push(registry.root)
    with pytest.raises(HTTPException) as refused:
        change(session, registry.root, version)
    assert refused.value.status_code == status
    assert len(registry.history("flights")) == 2


def test_user_must_be_allowed_to_edit_all_dags_of_the_model(
    session: Session, registry: FileRegistry, push: Push
) -> None:
    push(registry.root)
    with pytest.raises(HTTPException, match="every DAG") as refused:
        change(session, registry.root, version=3)  # another DAG has registered it
    assert refused.value.status_code == 403
    push(registry.root, dag_id="nightly")
    assert "every DAG" in (view(session, registry.root).refusal or "")
    with pytest.raises(HTTPException, match="every DAG") as refused:
        change(session, registry.root)
    assert refused.value.status_code == 403
    assert registry.champion_number("flights") == 2


def test_another_path_of_a_folder_gives_no_right_to_change_its_champions(
    session: Session, registry: FileRegistry, model_dir: Path, push: Push, tmp_path: Path
) -> None:
    (alias := tmp_path / "alias").symlink_to(registry.root.path)
    registry.register(model_dir, name="flights")  # in Python, without its origin
    push(registry.root, dag_id="nightly")
    push(alias)
    assert change(session, alias, 1).version == 1
    with pytest.raises(HTTPException, match="does not say which DAG") as refused:
        change(session, alias, 4, seen=1)
    assert refused.value.status_code == 403
    registry.promote("flights", 3, "better")  # registered by the other DAG
    with pytest.raises(HTTPException, match="every DAG"):
        change(session, alias, 2, seen=3)
    assert registry.champion_number("flights") == 3


def test_signed_versions_need_the_key_which_the_api_server_lacks(
    session: Session, tmp_path: Path, model_dir: Path, push: Push
) -> None:
    registry = FileRegistry(tmp_path / "signed", signing_key=KEY)
    for _ in range(2):
        registry.register(model_dir, name="flights")
    registry.promote("flights", 2, "first")
    push(registry.root)
    assert "signed" in (view(session, registry.root).refusal or "")
    with pytest.raises(HTTPException, match="signed"):
        change(session, registry.root)


def test_registry_that_is_not_read_is_not_changed(
    session: Session, registry: FileRegistry, push: Push, monkeypatch: pytest.MonkeyPatch
) -> None:
    push("s3://models")
    push(registry.root)
    for location, problem in (("s3://models", "object stores"), (registry.root, "read_registries is False")):
        found = view(session, location)
        assert problem in (found.refusal or "")
        assert (found.versions, len(found.evaluations)) == ([], 1)
        with pytest.raises(HTTPException, match=problem) as refused:
            change(session, location)
        assert refused.value.status_code == 409
        monkeypatch.setenv("AIRFLOW__PACELINE__READ_REGISTRIES", "False")


def test_registry_that_cannot_be_written_is_an_error_that_says_so(
    session: Session, registry: FileRegistry, push: Push, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(registry.root)
    monkeypatch.setattr(FileRegistry, "promote", Mock(side_effect=PermissionError("/models")))
    with pytest.raises(HTTPException, match="cannot write to the registry") as refused:
        change(session, registry.root)
    assert refused.value.status_code == 409


def test_registry_that_does_not_answer_is_changed_once(
    session: Session, registry: FileRegistry, push: Push, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(registry.root)
    release, done = threading.Event(), threading.Event()
    original = FileRegistry.promote

    def promote(*args: Any, **kwargs: Any) -> Any:
        release.wait()
        try:
            return original(*args, **kwargs)
        finally:
            done.set()

    monkeypatch.setattr(FileRegistry, "promote", promote)
    monkeypatch.setattr(_changes, "_WAIT_S", 0.01)
    for status in (504, 409):
        with pytest.raises(HTTPException) as refused:
            change(session, registry.root)
        assert refused.value.status_code == status
    release.set()
    done.wait()
    assert [one.version for one in registry.history("flights")] == [1, 2, 1]


def test_user_who_may_not_read_results_gets_neither_route(monkeypatch: pytest.MonkeyPatch) -> None:
    app = FastAPI()
    app.include_router(route.router)
    manager = Mock(**{"is_authorized_dag.return_value": False})
    monkeypatch.setattr(security, "get_auth_manager", lambda: manager)
    app.dependency_overrides[security.get_user] = lambda: ANNA
    client = TestClient(app)
    change = {"registry": "/models", "model": "flights", "version": 1, "seen": 2, "reason": "wrong"}
    assert client.get("/model", params={"registry": "/models", "model": "flights"}).status_code == 403
    assert client.put("/model/champion", json=change).status_code == 403


@pytest.mark.mlflow
def test_versions_in_mlflow_have_links_and_can_be_rolled_back(
    session: Session, mlflow_server: MlflowServer, model_dir: Path, push: Push, monkeypatch: pytest.MonkeyPatch
) -> None:
    extra = {"ui_url": "https://user:secret@mlflow.example.com/?x=1"}
    connection = {"conn_type": "mlflow", "host": mlflow_server.url, "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_MODELS", json.dumps(connection))
    registry = MlflowRegistry(mlflow_server.url)
    for _ in range(2):
        registry.register(model_dir, name="page-of-model")
    registry.promote("page-of-model", 1, "first")
    registry.promote("page-of-model", 2, "better")
    push("mlflow://models", model="page-of-model")
    found = view(session, "mlflow://models", "page-of-model")
    assert [one.url for one in found.versions] == [
        f"https://mlflow.example.com/#/models/page-of-model/versions/{number}" for number in (2, 1)
    ]
    assert [one.version for one in found.promotions] == [2, 1]
    body = {"registry": "mlflow://models", "model": "page-of-model", "version": 1, "seen": 2, "reason": "wrong"}
    route.change_champion(session, {"retrain"}, ANNA, ChampionChange.model_validate(body))
    assert registry.champion_number("page-of-model") == 1


@pytest.mark.mlflow
def test_another_name_of_an_mlflow_server_gives_no_right_to_change_its_champions(
    session: Session, mlflow_server: MlflowServer, model_dir: Path, push: Push, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("MODELS", "ALIAS"):
        connection = json.dumps({"conn_type": "mlflow", "host": mlflow_server.url})
        monkeypatch.setenv(f"AIRFLOW_CONN_{variable}", connection)
    registry = MlflowRegistry(mlflow_server.url)
    model = "page-of-another-name"
    for lineage in ({"dag_id": "nightly"}, {"dag_id": "retrain"}, {}, {"dag_id": "retrain"}):
        registry.register(model_dir, name=model, lineage=lineage)
    push("mlflow://models", model=model, dag_id="nightly")
    for location in ("mlflow://MODELS", "mlflow://alias"):
        push(location, model=model)

    def change(version: int, seen: int, location: str = "mlflow://alias") -> ShownPromotion:
        body = {"registry": location, "model": model, "version": version, "seen": seen, "reason": "wrong"}
        return route.change_champion(session, {"retrain"}, ANNA, ChampionChange.model_validate(body))

    registry.promote(model, 2, "first")
    for args in ((4, 2, "mlflow://MODELS"), (1, 2), (3, 2)):  # of all DAGs, of another DAG, of an unknown one
        with pytest.raises(HTTPException, match="every DAG") as refused:
            change(*args)
        assert refused.value.status_code == 403
    for champion in (1, 3):  # those of another DAG, and of an unknown one
        registry.promote(model, champion, "better")
        with pytest.raises(HTTPException, match="every DAG"):
            change(4, champion)
        assert registry.champion_number(model) == champion
    registry.promote(model, 2, "again")
    assert change(4, 2).version == 4
