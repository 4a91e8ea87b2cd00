"""``MlflowRegistry`` on a real MLflow server: aliases, concurrent writers, and a lost response to each request."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any, TypeVar
from unittest.mock import Mock

import pytest
from tests.mlflow_server import MlflowServer
from upath import UPath

from paceline.errors import InvalidInputError
from paceline.operators import PromoteOperator
from paceline.registry import ChampionChangedError, MlflowRegistry, ModelVersion, Promotion

pytestmark = pytest.mark.mlflow

WRITERS = 8
T = TypeVar("T")

# The changing requests of a first registration with a metric and one file, and of a first promotion.
REGISTRATION = (
    "registered-models/create",
    "experiments/create",
    "runs/create",
    "model/weights.bin",
    "paceline.json",
    "runs/log-batch",
    "runs/update",
    "model-versions/create",
    "registered-models/alias",
)
PROMOTION = (
    "registered-models/create",
    "model-versions/create",
    "registered-models/alias",
    "model-versions/set-tag",
    "registered-models/alias",
)


@pytest.fixture
def registry(mlflow_server: MlflowServer) -> MlflowRegistry:
    mlflow_server.clear()
    return MlflowRegistry(mlflow_server.url)


@pytest.fixture
def name() -> str:
    return f"flights-{uuid.uuid4().hex[:8]}"


def make_model(tmp_path: Path, content: str) -> Path:
    folder = tmp_path / content
    folder.mkdir(exist_ok=True)
    (folder / "weights.bin").write_text(content)
    return folder


def read_model(registry: MlflowRegistry, version: ModelVersion, tmp_path: Path) -> str:
    return (registry.fetch(version, tmp_path / uuid.uuid4().hex) / "weights.bin").read_text()


def run_concurrently(count: int, write: Callable[[int], T]) -> list[T]:
    barrier = Barrier(count)

    def start(index: int) -> T:
        barrier.wait()
        return write(index)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(start, range(count)))


def aliases(server: MlflowServer, name: str) -> dict[str, str]:
    found = server.get("/registered-models/get", name=name)["registered_model"].get("aliases", [])
    return {alias["alias"]: alias["version"] for alias in found}


def active_runs(server: MlflowServer, name: str) -> list[dict[str, Any]]:
    experiment = server.get("/experiments/get-by-name", experiment_name=name)["experiment"]["experiment_id"]
    runs: list[dict[str, Any]] = server.post("/runs/search", {"experiment_ids": [experiment]}).get("runs", [])
    return runs


def test_run_and_aliases_show_a_version_in_mlflow(
    mlflow_server: MlflowServer, registry: MlflowRegistry, name: str, tmp_path: Path
) -> None:
    for content in ("first", "second"):
        registry.register(make_model(tmp_path, content), name=name, metrics={"auc": 0.7})
    assert aliases(mlflow_server, name) == {"challenger": "2"}
    registry.promote(name, 2, reason="better")
    assert aliases(mlflow_server, name) == {"champion": "2"}
    registry.register(make_model(tmp_path, "third"), name=name)
    assert aliases(mlflow_server, name) == {"champion": "2", "challenger": "3"}
    third, second, first = active_runs(mlflow_server, name)
    assert {run["info"]["status"] for run in (first, second, third)} == {"FINISHED"}
    assert [metric["value"] for metric in first["data"]["metrics"]] == [0.7]
    assert registry.uri(registry.version(name, 2)) == f"models:/{name}/2"


def test_champion_chosen_by_a_user_in_mlflow_is_respected(
    mlflow_server: MlflowServer, registry: MlflowRegistry, name: str, tmp_path: Path
) -> None:
    for content in ("first", "second", "third"):
        registry.register(make_model(tmp_path, content), name=name)
    registry.promote(name, 1, reason="the first")
    registry.promote(name, 2, reason="better")
    mlflow_server.post("/registered-models/alias", {"name": name, "alias": "champion", "version": "1"})
    champion = registry.champion(name)
    assert champion is not None
    assert champion.version == 1
    with pytest.raises(ChampionChangedError):
        registry.promote(name, 3, reason="better than 2", expected_champion=2)
    registry.promote(name, 3, reason="better than 1", expected_champion=1)
    assert [(p.version, p.previous) for p in registry.history(name)] == [(1, None), (2, 1), (3, 1)]


def test_version_of_another_tool_can_be_champion(
    mlflow_server: MlflowServer, registry: MlflowRegistry, name: str, tmp_path: Path
) -> None:
    experiment = mlflow_server.post("/experiments/create", {"name": name})["experiment_id"]
    run = mlflow_server.post("/runs/create", {"experiment_id": experiment})["run"]["info"]
    mlflow_server.post("/runs/log-metric", {"run_id": run["run_id"], "key": "auc", "value": 0.6, "timestamp": 1})
    folder = mlflow_server.artifacts / run["artifact_uri"].partition(":/")[2] / "sklearn" / "data"
    folder.mkdir(parents=True)
    (folder / "weights.bin").write_text("other")
    mlflow_server.post("/registered-models/create", {"name": name})
    source = f"{run['artifact_uri']}/sklearn"
    mlflow_server.post("/model-versions/create", {"name": name, "source": source, "run_id": run["run_id"]})

    (version,) = registry.versions(name)
    assert (version.version, version.metrics, version.data_window) == (1, {"auc": 0.6}, {})
    assert {path: file.size_bytes for path, file in version.files.items()} == {"data/weights.bin": 5}
    registry.promote(name, 1, reason="the model of today")
    champion = registry.champion(name)
    assert champion == version
    fetched = registry.fetch(version, tmp_path / "fetched")
    assert (fetched / "data" / "weights.bin").read_text() == "other"
    assert registry.register(make_model(tmp_path, "new"), name=name).version == 2


def test_concurrent_registrations_get_different_versions(registry: MlflowRegistry, name: str, tmp_path: Path) -> None:
    models = [make_model(tmp_path, f"model-{index}") for index in range(WRITERS)]
    made = run_concurrently(WRITERS, lambda index: registry.register(models[index], name=name, key=f"run-{index}"))
    assert sorted(version.version for version in made) == list(range(1, WRITERS + 1))
    assert [read_model(registry, version, tmp_path) for version in made] == [
        f"model-{index}" for index in range(WRITERS)
    ]
    assert [version.key for version in made] == [f"run-{index}" for index in range(WRITERS)]


def test_concurrent_registrations_with_the_same_key_create_one_version(
    mlflow_server: MlflowServer, registry: MlflowRegistry, name: str, tmp_path: Path
) -> None:
    model = make_model(tmp_path, "model")
    made = run_concurrently(WRITERS, lambda _: registry.register(model, name=name, key="run"))
    assert {version.version for version in made} == {made[0].version}
    assert registry.versions(name) == [made[0]]
    assert read_model(registry, made[0], tmp_path) == "model"
    found = mlflow_server.get("/model-versions/search", filter=f"name = '{name}'")["model_versions"]
    assert len(found) == 1, "the other attempts have removed their versions"
    assert [run["info"]["run_id"] for run in active_runs(mlflow_server, name)] == [found[0]["run_id"]]


@pytest.mark.parametrize("lost", range(len(REGISTRATION)), ids=REGISTRATION)
def test_registration_survives_a_lost_response(
    mlflow_server: MlflowServer, registry: MlflowRegistry, name: str, tmp_path: Path, lost: int
) -> None:
    mlflow_server.lost.add(lost)
    made = registry.register(make_model(tmp_path, "model"), name=name, metrics={"auc": 0.7}, key="run")
    assert mlflow_server.changes[lost].endswith(REGISTRATION[lost])
    assert made.version == 1
    assert registry.versions(name) == [made]
    assert read_model(registry, made, tmp_path) == "model"
    assert len(active_runs(mlflow_server, name)) == 1
    assert aliases(mlflow_server, name) == {"challenger": "1"}


@pytest.mark.parametrize("lost", range(len(PROMOTION)), ids=PROMOTION)
def test_promotion_survives_a_lost_response(
    mlflow_server: MlflowServer, registry: MlflowRegistry, name: str, tmp_path: Path, lost: int
) -> None:
    registry.register(make_model(tmp_path, "model"), name=name)
    mlflow_server.clear()
    mlflow_server.lost.add(lost)
    promotion = registry.promote(name, 1, reason="better")
    assert mlflow_server.changes[lost].endswith(PROMOTION[lost])
    assert registry.history(name) == [promotion]
    assert aliases(mlflow_server, name) == {"champion": "1"}


def test_promotion_that_came_second_is_removed_even_if_a_response_is_lost(
    mlflow_server: MlflowServer, registry: MlflowRegistry, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for content in ("first", "second"):
        registry.register(make_model(tmp_path, content), name=name)
    registry.promote(name, 1, reason="the first")
    late = registry._log(name)
    seen = late.latest()
    registry.promote(name, 2, reason="better")
    mlflow_server.clear()
    mlflow_server.lost.add(1)
    monkeypatch.setattr(late, "entries", lambda: pytest.fail("the newest versions suffice"))
    assert late.append(2, 1, "better", hold=False, seen=seen) is None
    assert mlflow_server.changes[1].endswith("model-versions/delete")
    assert [one.version for one in registry.history(name)] == [1, 2]
    found = mlflow_server.get("/model-versions/search", filter=f"name = '{name}.promotions'")["model_versions"]
    assert len(found) == 2


def test_existing_models_are_not_created_again(
    mlflow_server: MlflowServer, registry: MlflowRegistry, name: str, tmp_path: Path
) -> None:
    registry.register(make_model(tmp_path, "first"), name=name)
    registry.promote(name, 1, reason="the first")
    mlflow_server.clear()
    registry.register(make_model(tmp_path, "second"), name=name)
    registry.promote(name, 2, reason="better")
    assert not [change for change in mlflow_server.changes if change.endswith("registered-models/create")]


def test_next_promotion_completes_one_whose_writer_has_died(
    mlflow_server: MlflowServer, registry: MlflowRegistry, name: str, tmp_path: Path
) -> None:
    for content in ("first", "second"):
        registry.register(make_model(tmp_path, content), name=name)
    registry.promote(name, 1, reason="the first")
    tags = {"paceline.version": "2", "paceline.previous": "1", "paceline.seen": "1"}
    mlflow_server.post(
        "/model-versions/create",
        {
            "name": f"{name}.promotions",
            "source": f"models:/{name}/2",
            "description": "better",
            "tags": [{"key": key, "value": value} for key, value in tags.items()],
        },
    )
    champion = registry.champion(name)
    assert champion is not None
    assert champion.version == 2
    assert aliases(mlflow_server, name)["champion"] == "1"
    impatient = MlflowRegistry(mlflow_server.url, writer_timeout_s=0.0)
    repeated = impatient.promote(name, 2, reason="a retry", expected_champion=1)
    assert repeated.reason == "better"
    assert aliases(mlflow_server, name)["champion"] == "2"
    assert registry.history(name)[1:] == [repeated]


def test_concurrent_promotions_are_all_recorded(
    mlflow_server: MlflowServer, registry: MlflowRegistry, name: str, tmp_path: Path
) -> None:
    for index in range(WRITERS):
        registry.register(make_model(tmp_path, f"model-{index}"), name=name)
    run_concurrently(WRITERS, lambda index: registry.promote(name, index + 1, reason="better"))
    history = registry.history(name)
    assert sorted(one.version for one in history) == list(range(1, WRITERS + 1))
    assert [one.previous for one in history] == [None, *(one.version for one in history[:-1])]
    assert aliases(mlflow_server, name)["champion"] == str(history[-1].version)


def test_only_one_of_concurrent_promotions_with_the_same_expected_champion_succeeds(
    registry: MlflowRegistry, name: str, tmp_path: Path
) -> None:
    for index in range(WRITERS):
        registry.register(make_model(tmp_path, f"model-{index}"), name=name)

    def promote(index: int) -> Promotion | None:
        try:
            return registry.promote(name, index + 1, reason="better", expected_champion=None)
        except ChampionChangedError:
            return None

    succeeded = [promotion for promotion in run_concurrently(WRITERS, promote) if promotion]
    assert registry.history(name) == succeeded
    assert len(succeeded) == 1


def test_artifacts_outside_of_the_server_are_opened_by_their_uri(
    mlflow_server: MlflowServer, name: str, tmp_path: Path
) -> None:
    location = f"memory://{name}/artifacts"
    mlflow_server.post("/experiments/create", {"name": name, "artifact_location": location})
    opened: list[str] = []

    def open_path(uri: str) -> UPath:
        opened.append(uri)
        return UPath(uri)

    registry = MlflowRegistry(mlflow_server.url, open_path=open_path)
    version = registry.register(make_model(tmp_path, "model"), name=name)
    assert read_model(registry, version, tmp_path) == "model"
    assert all(uri.startswith(location) for uri in opened)


def test_modified_manifest_is_rejected(
    mlflow_server: MlflowServer, registry: MlflowRegistry, name: str, tmp_path: Path
) -> None:
    registry.register(make_model(tmp_path, "model"), name=name)
    run_id = active_runs(mlflow_server, name)[0]["info"]["run_id"]
    (manifest,) = mlflow_server.artifacts.glob(f"*/{run_id}/artifacts/paceline.json")
    manifest.write_text(manifest.read_text().replace('"key": null', '"key": "other"'))
    with pytest.raises(InvalidInputError, match=r"paceline\.json: got 'sha256 .*; the file has changed"):
        registry.version(name, 1)
    manifest.unlink()
    with pytest.raises(InvalidInputError, match=rf"paceline\.json: got 'no file', expected the manifest of {name} 1"):
        registry.version(name, 1)


def test_any_number_of_metrics_with_any_names_is_stored(
    mlflow_server: MlflowServer, registry: MlflowRegistry, name: str, tmp_path: Path
) -> None:
    metrics = {"recall@5": 0.5, "loss (val)": 0.25} | {f"metric {index}": index / 7 for index in range(1001)}
    made = registry.register(make_model(tmp_path, "model"), name=name, metrics=metrics)
    assert registry.version(name, 1).metrics == made.metrics == metrics
    (run,) = active_runs(mlflow_server, name)
    assert len(run["data"]["metrics"]) == len(metrics)
    assert {"recall_5", "loss _val_"} <= {metric["key"] for metric in run["data"]["metrics"]}


def test_newest_version_after_the_champion_is_the_challenger(
    mlflow_server: MlflowServer, registry: MlflowRegistry, name: str, tmp_path: Path
) -> None:
    def register() -> int:
        return registry.register(make_model(tmp_path, "model"), name=name).version

    assert run_concurrently(3, lambda _: register())
    registry.promote(name, 3, reason="better")
    assert aliases(mlflow_server, name) == {"champion": "3"}
    mlflow_server.post("/registered-models/alias", {"name": name, "alias": "challenger", "version": "3"})
    registry.promote(name, 3, reason="a retry after a lost process")
    assert aliases(mlflow_server, name) == {"champion": "3"}
    run_concurrently(2, lambda index: register() if index else registry.promote(name, 1, reason="back"))
    assert aliases(mlflow_server, name) == {"champion": "1", "challenger": "4"}


def test_model_name_reserved_for_promotion_histories_is_rejected(registry: MlflowRegistry, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"name: got 'x\.promotions', expected a name that does not end in"):
        registry.register(make_model(tmp_path, "model"), name="x.promotions")


def test_remote_server_cannot_choose_local_folders(tmp_path: Path) -> None:
    server = MlflowRegistry("https://mlflow.example.com")._server
    for folder in (str(tmp_path), f"file://{tmp_path}"):
        with pytest.raises(InvalidInputError, match=r"artifact_uri: got .* or a local folder if the server is local"):
            server.list_files(folder)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("htp://ann:secret@host", "htp://***@host"),
        ("http://host:port", "http://host:port"),
        ("http://[::1", "http://[::1"),
        ("http://host/?a=1", "http://host/?a=1"),
    ],
)
def test_invalid_url_is_rejected_without_its_password(url: str, shown: str) -> None:
    with pytest.raises(InvalidInputError) as raised:
        MlflowRegistry(url)
    assert str(raised.value).startswith(f"url: got {shown!r}, expected the URL of an MLflow server")


def test_invalid_header_is_rejected_without_its_value() -> None:
    for token in ("s3cr3t\n", "s3cr3t\u20ac"):
        with pytest.raises(InvalidInputError, match="header Authorization: got 'non-ASCII or control") as raised:
            MlflowRegistry("http://localhost:5000", headers={"Authorization": f"Bearer {token}"})
        assert "s3cr3t" not in str(raised.value)


def test_promotion_task_uses_the_server_of_its_connection(
    mlflow_server: MlflowServer,
    registry: MlflowRegistry,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_MLFLOW_TEST", json.dumps({"conn_type": "mlflow", "host": mlflow_server.url}))
    for content in ("first", "second"):
        registry.register(make_model(tmp_path, content), name=name)
    mlflow_server.post("/registered-models/alias", {"name": name, "alias": "champion", "version": "1"})

    def promote(version: int, champion_version: int | None) -> dict[str, Any]:
        scores = {"metric": "auc", "challenger": 0.8, "champion": 0.7, "improvement": 0.1}
        evaluation = {"model": name, "version": version, "champion_version": champion_version, **scores}
        operator = PromoteOperator(task_id="promote", evaluation=evaluation, registry="mlflow://mlflow_test")
        return operator.execute({"ti": Mock(spec=["xcom_push"])})  # type: ignore[typeddict-item]

    chosen_by_a_user = promote(1, None)
    assert (chosen_by_a_user["verdict"], chosen_by_a_user["previous_version"]) == ("already champion", None)
    promoted = promote(2, 1)
    assert (promoted["verdict"], promoted["previous_version"]) == ("better", 1)
    assert aliases(mlflow_server, name) == {"champion": "2"}
