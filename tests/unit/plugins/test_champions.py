"""The page shows the champion of the registry, where the API server can read it safely and in time."""

from __future__ import annotations

import json
import math
import socket
import threading
import uuid
from collections.abc import Collection, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from airflow.models.xcom import XCOM_RETURN_KEY
from airflow.sdk.io import attach
from fsspec.implementations.memory import MemoryFileSystem
from sqlalchemy.orm import Session
from tests.mlflow_server import MlflowServer
from tests.unit.plugins.test_overview import promote_task, start_task

from paceline.airflow.places import storage_path
from paceline.contract import EVALUATION_XCOM, PROMOTION_XCOM
from paceline.plugins.web import _registries
from paceline.plugins.web import champions as route
from paceline.plugins.web._registries import ChampionReading, RegistryReader, read_champions
from paceline.registry import FileRegistry, MlflowRegistry

NOW = datetime.now(timezone.utc)
OLD = NOW - timedelta(days=1)
WAIT_S = 50.0  # longer than the 30 s after which a thread presumably hangs


@pytest.fixture
def registry(tmp_path: Path) -> FileRegistry:
    """Return a registry with two versions of the model "flights", none of which is the champion."""
    return register_two(FileRegistry(tmp_path / "models"), tmp_path)


def register_two(registry: Any, folder: Path, name: str = "flights") -> Any:
    (folder / "model").mkdir(exist_ok=True)
    for version in "12":
        (folder / "model" / "weights").write_text(version)
        registry.register(folder / "model", name=name)
    return registry


@pytest.fixture
def push_result(session: Session, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that stores an evaluation and, with a ``champion``, the promotion task's result."""
    monkeypatch.setattr(route, "_reader", RegistryReader(read_champions, ChampionReading, wait_s=3600, fresh_s=0.0))
    runs: list[str] = []

    def push(location: object, champion: int | None = None, model: str = "flights") -> None:
        evaluation = {
            "model": model, "registry": str(location), "version": 1, "metric": "auc", "challenger": 0.7,
            "champion": None, "champion_version": None, "improvement": None,
        }  # fmt: skip
        promotion = {
            "promoted": True, "verdict": "first", "reason": "", "model": model, "registry": str(location),
            "version": 1, "champion_version": champion, "previous_version": None,
        }  # fmt: skip
        for key, value in ((EVALUATION_XCOM, evaluation), (PROMOTION_XCOM, promotion if champion else None)):
            runs.append(f"run-{len(runs)}")
            store = start_task(session, promote_task("retrain"), runs[-1])
            store(key=key, value=True)
            store(key=XCOM_RETURN_KEY, value=value)

    return push


def ask(session: Session) -> ChampionReading:
    (reading,) = route.champions(session, {"retrain"})
    return reading


def test_promotion_by_hand_after_that_of_a_dag_is_shown(
    session: Session, registry: FileRegistry, push_result: Any
) -> None:
    registry.promote("flights", 2, "better")
    push_result(registry.root, champion=2)
    assert ask(session).champion == 2
    promotion = registry.promote("flights", 1, "wrong on Sundays", hold=True)
    reading = ask(session)
    assert (reading.champion, reading.reason, reading.held) == (1, "wrong on Sundays", True)
    assert (reading.promoted_at, reading.problem) == (promotion.promoted_at, None)
    assert reading.read_at >= promotion.promoted_at


def test_models_of_dags_that_the_user_may_not_read_are_not_read(
    session: Session, registry: FileRegistry, push_result: Any
) -> None:
    push_result(registry.root)
    assert route.champions(session, {"nightly"}) == []


def test_administrator_can_forbid_that_the_api_server_reads_registries(
    session: Session, registry: FileRegistry, push_result: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    push_result(registry.root)
    monkeypatch.setenv("AIRFLOW__PACELINE__READ_REGISTRIES", "False")
    assert route.champions(session, {"retrain"}) == []


def test_folder_of_another_machine_at_the_same_path_is_not_the_tasks_registry(
    session: Session, registry: FileRegistry, push_result: Any
) -> None:
    push_result(registry.root, champion=2)
    assert "lacks their last promotion" in (ask(session).problem or "")
    registry.promote("flights", 1, "long ago")
    record = registry.root / "flights" / "promotions" / "000001.json"
    stored = json.loads(record.read_text())
    record.write_text(json.dumps(stored | {"promoted_at": OLD.replace(tzinfo=None).isoformat()}))
    assert "lacks their last promotion" in (ask(session).problem or "")


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("s3://aws@bucket/models", "does not open object stores"),
        ("http://169.254.169.254/latest", "does not open object stores"),
        ("simplecache::file:///etc", "does not open object stores"),
        ("file://host/etc", "does not open object stores"),
        ("/models::memory", "does not open object stores"),
        ("models", "does not open object stores"),
        ("/no-such-folder", "has no folder of this registry"),
        ("mlflow://unknown", "no connection"),
        ("mlflow://../variables/key", "no connection"),
        ("mlflow://database", "is not 'mlflow'"),
        ("/models\0", "has no folder of this registry"),
    ],
)
def test_registry_that_the_api_server_must_not_or_cannot_open_has_a_problem(
    location: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_DATABASE", "postgres://me:secret@127.0.0.1:1/production")
    (reading,) = read_champions(location, ["flights"])
    assert expected in (reading.problem or "")
    assert reading.champion is None


def test_connection_of_a_team_is_a_problem_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__MULTI_TEAM", "True")
    monkeypatch.setenv(
        "AIRFLOW_CONN__SALES___MODELS", json.dumps({"conn_type": "mlflow", "host": "http://127.0.0.1:1"})
    )
    for location in ("mlflow://models", "mlflow://_sales___models"):
        (reading,) = read_champions(location, ["flights"])
        assert "does not use connections of teams" in (reading.problem or "")


def test_listed_object_store_is_read_and_no_other(
    session: Session, tmp_path: Path, push_result: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    attach("memory", fs=MemoryFileSystem())  # an object store for Airflow in the memory of this process
    store = f"memory://{uuid.uuid4().hex}"
    registry = register_two(FileRegistry(storage_path(f"{store}/models")), tmp_path)
    registry.promote("flights", 2, "better")
    push_result(f"{store}/models", champion=2)
    assert "does not open object stores" in (ask(session).problem or "")
    monkeypatch.setenv("AIRFLOW__PACELINE__READ_OBJECT_STORES", f"s3://aws@other, {store}/")
    assert (ask(session).champion, ask(session).problem) == (2, None)
    registry.promote("flights", 1, "wrong on Sundays", hold=True)
    reading = ask(session)
    assert (reading.champion, reading.reason, reading.held) == (1, "wrong on Sundays", True)
    assert [one.champion for one in read_champions(f"{store}/models", ["unknown"])] == [None]
    for other in (f"{store}2/models", f"{store}/../models", f"simplecache::{store}/models", f"x{store}/models"):
        (failed,) = read_champions(other, ["flights"])
        assert "does not open object stores" in (failed.problem or "")


def test_listed_object_store_without_its_provider_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__PACELINE__READ_OBJECT_STORES", "s3x://bucket")
    (reading,) = read_champions("s3x://bucket/models", ["flights"])
    assert "lacks the Airflow provider" in (reading.problem or "")


def tamper(registry: FileRegistry, kind: str) -> None:
    record = Path(registry.root.path) / "flights" / "promotions" / "000001.json"
    record.unlink()
    if kind == "link":
        (record.parent / "target.json").write_text('{"name": "flights", "version": 1, "promoted_at": 0, "reason": ""}')
        record.symlink_to("target.json")
    elif kind == "huge":
        with record.open("wb") as file:
            file.truncate(1 << 40)
    else:
        record.write_text("root:secret" if kind == "text" else '{"version": "secret"}')


@pytest.mark.parametrize("kind", ["link", "huge", "text", "other record"])
def test_damaged_record_is_a_problem_that_does_not_show_its_content(registry: FileRegistry, kind: str) -> None:
    registry.promote("flights", 1, "first")
    tamper(registry, kind)
    (reading,) = read_champions(str(registry.root), ["flights"])
    assert "is damaged" in (reading.problem or "")
    assert "secret" not in reading.model_dump_json()


def test_model_whose_name_is_a_path_is_not_read(registry: FileRegistry) -> None:
    registry.promote("flights", 1, "first")
    (reading,) = read_champions(str(registry.root / "flights" / "versions"), ["../../flights"])
    assert (reading.champion, reading.problem is None) == (None, False)


def test_champion_whose_version_was_deleted_is_a_problem(registry: FileRegistry) -> None:
    registry.promote("flights", 1, "first")
    (registry.root / "flights" / "versions" / "000001" / "manifest.json").unlink()
    (reading,) = read_champions(str(registry.root), ["flights"])
    assert "its version is missing" in (reading.problem or "")


def test_registry_that_does_not_answer_delays_neither_the_others_nor_the_page() -> None:
    release = threading.Event()
    calls: list[str] = []

    def read(location: str, models: Collection[str]) -> Iterator[ChampionReading]:
        calls.append(location)
        if location == "away":
            release.wait()
        for model in models:
            yield ChampionReading(registry=location, model=model, read_at=NOW, champion=1)

    reader = RegistryReader(read, ChampionReading, wait_s=0.01, fresh_s=math.inf)
    places = [("away", "flights"), ("here", "flights"), ("here", "churn")]
    while [one.champion for one in reader.readings(places)[1:]] != [1, 1]:
        pass
    readings = reader.readings(places)
    assert readings[0].champion is None
    assert readings[0].problem == "The registry has not answered yet."
    assert calls == ["away", "here"], "one thread for a registry, and readings are kept"
    release.set()
    reader = RegistryReader(read, ChampionReading, wait_s=3600)
    assert [one.champion for one in reader.readings(places)] == [1, 1, 1]


class Registries:
    """Registries that answer or, at the locations in ``away``, block until they are released, and a clock.

    ``champion`` is the champion of all models; a thread reads it before it blocks.
    """

    def __init__(self) -> None:
        self.away: set[str] = set()
        self.champion = 1
        self.time_s = 0.0
        self.release, self.blocked, self.ended = threading.Event(), threading.Semaphore(0), threading.Semaphore(0)
        self.reader = RegistryReader(
            self._read, ChampionReading, wait_s=WAIT_S, fresh_s=10.0, clock=lambda: self.time_s
        )

    def _read(self, location: str, models: Collection[str]) -> Iterator[ChampionReading]:
        champion = self.champion
        if location in self.away:
            self.blocked.release()
            self.release.wait()
        try:
            for model in models:
                yield ChampionReading(registry=location, model=model, read_at=NOW, champion=champion)
        finally:
            self.ended.release()

    def champions(self, *locations: str, model: str = "flights") -> list[int | None]:
        """Return the champion of a model in some registries; ``None`` for those that have not answered."""
        return [one.champion for one in self.reader.readings((location, model) for location in locations)]

    def block(self, *locations: str) -> threading.Thread:
        """Ask for registries that are away; return when they block the thread that this returns."""
        self.away.update(locations)
        thread = threading.Thread(target=self.champions, args=locations, daemon=True)
        thread.start()
        for _ in locations:
            self.blocked.acquire()
        return thread


@pytest.fixture
def registries() -> Iterator[Registries]:
    registries = Registries()
    yield registries
    registries.release.set()


def test_request_does_not_wait_for_a_registry_for_which_another_one_waits(registries: Registries) -> None:
    assert registries.champions("a") == [1]
    registries.time_s = 20.0
    registries.block("a", "b")
    assert registries.champions("a") == [1], "the known reading"
    registries.time_s += WAIT_S
    assert registries.champions("a", "b", "c") == [1, None, 1]
    registries.time_s += 300.0
    assert registries.champions("a") == [None], "it is too old"


def test_change_is_shown_at_once_even_if_a_thread_has_read_the_registry_before_it(registries: Registries) -> None:
    assert registries.champions("a") == [1]
    registries.ended.acquire()
    registries.time_s = 20.0
    registries.block("a")
    registries.away.clear()
    registries.champion = 2
    registries.reader.forget(("a", "flights"))
    assert registries.champions("a") == [2]
    registries.ended.acquire()
    registries.release.set()
    registries.ended.acquire()  # the first thread, which has read 1
    assert registries.champions("a") == [2]


def test_registries_that_do_not_answer_do_not_keep_others_from_being_read(
    registries: Registries, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_registries, "_MAX_HUNG", 9)
    registries.block(*(f"away-{number}" for number in range(8)))
    assert registries.champions("a") == [None], "at most eight threads"
    registries.time_s = WAIT_S
    assert registries.champions("a") == [1]
    registries.block("away-8")
    registries.time_s += WAIT_S
    assert registries.champions("b") == [None], "a bound on threads"


def test_silent_mlflow_server_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_registries, "_PATIENCE_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:  # accepts connections, and never responds
        host = f"http://127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setenv("AIRFLOW_CONN_MODELS", json.dumps({"conn_type": "mlflow", "host": host}))
        readings = list(read_champions("mlflow://models", ["flights", "churn"]))
    assert {one.problem for one in readings} == {"The MLflow server does not respond, or refuses the request."}


@pytest.mark.mlflow
def test_alias_that_a_person_has_moved_in_mlflow_is_shown(
    mlflow_server: MlflowServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_MODELS", json.dumps({"conn_type": "mlflow", "host": mlflow_server.url}))
    registry = register_two(MlflowRegistry(mlflow_server.url), tmp_path, "alias-on-page")
    registry.promote("alias-on-page", 2, "better")
    (before,) = read_champions("mlflow://models", ["alias-on-page"])
    assert (before.champion, before.reason, before.promoted_at is None) == (2, "better", False)
    body = {"name": "alias-on-page", "alias": "champion", "version": "1"}
    mlflow_server.post("/registered-models/alias", body)
    (after,) = read_champions("mlflow://models", ["alias-on-page"])
    assert (after.champion, after.promoted_at, after.problem) == (1, None, None)
