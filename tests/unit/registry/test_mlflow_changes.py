"""``MlflowRegistry`` on a real MLflow server whose models a person or another tool changes: deletions, copies, renames.

Most of these changes have a button in MLflow's UI.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from airflow.sdk.exceptions import AirflowFailException
from tests.mlflow_server import MlflowServer

from paceline.errors import InvalidInputError
from paceline.operators import PromoteOperator
from paceline.registry import MlflowRegistry, ModelVersion
from paceline.registry._mlflow_promotions import PromotionLog
from paceline.registry._mlflow_server import MlflowUnavailableError

pytestmark = pytest.mark.mlflow

Register = Callable[..., list[ModelVersion]]


@pytest.fixture
def registry(mlflow_server: MlflowServer) -> MlflowRegistry:
    mlflow_server.clear()
    return MlflowRegistry(mlflow_server.url, writer_timeout_s=0.0)


@pytest.fixture
def register(registry: MlflowRegistry, name: str, tmp_path: Path) -> Register:
    """Register versions with different files, and promote some of them."""

    def register(count: int, *, promoted: tuple[int, ...] = ()) -> list[ModelVersion]:
        made = []
        for _ in range(count):
            folder = tmp_path / uuid.uuid4().hex
            folder.mkdir()
            (folder / "weights.bin").write_text(folder.name)
            made.append(registry.register(folder, name=name))
        for version in promoted:
            registry.promote(name, version, reason=f"promotes {version}")
        return made

    return register


@pytest.fixture
def promote_task(mlflow_server: MlflowServer, name: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Run a promotion task for a version that is better than the champion of its evaluation."""
    monkeypatch.setenv("AIRFLOW_CONN_MLFLOW_TEST", json.dumps({"conn_type": "mlflow", "host": mlflow_server.url}))

    def run(version: int, champion_version: int | None) -> dict[str, Any]:
        scores = {"metric": "auc", "challenger": 0.8, "champion": 0.7, "improvement": 0.1}
        evaluation = {"model": name, "version": version, "champion_version": champion_version, **scores}
        operator = PromoteOperator(task_id="promote", evaluation=evaluation, registry="mlflow://mlflow_test")
        return operator.execute({"ti": Mock(spec=["xcom_push"])})  # type: ignore[typeddict-item]

    return run


def delete_version(server: MlflowServer, name: str, version: int) -> None:
    server.delete("/model-versions/delete", {"name": name, "version": str(version)})


def aliases(server: MlflowServer, name: str) -> dict[str, str]:
    found = server.get("/registered-models/get", name=name)["registered_model"].get("aliases", [])
    return {alias["alias"]: alias["version"] for alias in found}


def history(registry: MlflowRegistry, name: str) -> list[tuple[int, int | None]]:
    return [(one.version, one.previous) for one in registry.history(name)]


def champion(registry: MlflowRegistry, name: str) -> int | None:
    found = registry.champion(name)
    return found.version if found else None


def fail_to_publish_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the next writer of a promotion disconnect after it has appended the promotion."""

    def disconnect(log: PromotionLog, entry: object) -> None:
        monkeypatch.undo()
        raise MlflowUnavailableError("the server does not respond")

    monkeypatch.setattr(PromotionLog, "publish", disconnect)


@pytest.mark.parametrize("removed", ["version", "alias"])
def test_missing_champion_is_an_error_until_a_version_is_promoted(
    mlflow_server: MlflowServer,
    registry: MlflowRegistry,
    name: str,
    register: Register,
    promote_task: Callable[..., Any],
    removed: str,
) -> None:
    register(3, promoted=(1, 2))
    if removed == "version":
        delete_version(mlflow_server, name, 2)
    else:
        mlflow_server.delete("/registered-models/alias", {"name": name, "alias": "champion"})
    error = rf"champion of {name}: .* version 2, .*alias 'champion'.*registry\.promote\('{name}', "
    for call in (
        lambda: registry.champion(name),
        lambda: registry.promote(name, 3, reason="the first", expected_champion=None),
        lambda: registry.promote(name, 3, reason="better", expected_champion=2),
    ):
        with pytest.raises(InvalidInputError, match=error):
            call()
    for evaluated_with in (None, 2):
        with pytest.raises(AirflowFailException, match=error):
            promote_task(3, evaluated_with)
    assert history(registry, name) == [(1, None), (2, 1)]

    registry.promote(name, 3, reason="replaces the missing champion")
    assert champion(registry, name) == 3
    assert history(registry, name) == [(1, None), (2, 1), (3, 2)]
    assert aliases(mlflow_server, name) == {"champion": "3"}


def test_promoting_the_version_of_a_removed_alias_restores_the_alias(
    mlflow_server: MlflowServer, registry: MlflowRegistry, name: str, register: Register
) -> None:
    register(2, promoted=(1, 2))
    mlflow_server.delete("/registered-models/alias", {"name": name, "alias": "champion"})
    registry.promote(name, 2, reason="restores it")
    assert champion(registry, name) == 2
    assert aliases(mlflow_server, name) == {"champion": "2"}
    assert history(registry, name) == [(1, None), (2, 1)], "no second record"


@pytest.mark.parametrize("change", ["delete", "rename"])
def test_model_that_is_deleted_or_renamed_has_no_first_champion_again(
    mlflow_server: MlflowServer, registry: MlflowRegistry, name: str, register: Register, change: str
) -> None:
    register(2, promoted=(2,))
    if change == "delete":
        mlflow_server.delete("/registered-models/delete", {"name": name})
    else:
        mlflow_server.post("/registered-models/rename", {"name": name, "new_name": f"{name}-old"})
    register(1)
    with pytest.raises(InvalidInputError, match=f"champion of {name}: .* version 2"):
        registry.champion(name)
    mlflow_server.delete("/registered-models/delete", {"name": f"{name}.promotions"})
    assert champion(registry, name) is None, "without its history, the model starts anew"


def test_model_renamed_with_its_promotions_keeps_champion_and_history(
    mlflow_server: MlflowServer, registry: MlflowRegistry, name: str, register: Register
) -> None:
    register(2, promoted=(1, 2))
    for suffix in ("", ".promotions"):
        mlflow_server.post("/registered-models/rename", {"name": name + suffix, "new_name": f"{name}-new{suffix}"})
    assert champion(registry, f"{name}-new") == 2
    assert history(registry, f"{name}-new") == [(1, None), (2, 1)]


@pytest.mark.parametrize("promoted", [(), (1,)], ids=["first", "second"])
def test_retried_promotion_task_completes_a_promotion_whose_alias_was_not_set(
    mlflow_server: MlflowServer,
    registry: MlflowRegistry,
    name: str,
    register: Register,
    promote_task: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    promoted: tuple[int, ...],
) -> None:
    monkeypatch.setattr(
        MlflowRegistry.__init__,
        "__kwdefaults__",
        {**(MlflowRegistry.__init__.__kwdefaults__ or {}), "writer_timeout_s": 0.0},
    )
    register(2, promoted=promoted)
    before = promoted[0] if promoted else None
    with monkeypatch.context() as patch:
        fail_to_publish_once(patch)
        with pytest.raises(MlflowUnavailableError):
            promote_task(2, before)
    assert aliases(mlflow_server, name).get("champion") == (str(before) if before else None)
    for _ in range(2):
        retried = promote_task(2, before)
        assert (retried["verdict"], retried["promoted"]) == ("already champion", True)
        assert (retried["champion_version"], retried["previous_version"]) == (2, before)
        assert aliases(mlflow_server, name) == {"champion": "2"}
    assert history(registry, name) == [*((one, None) for one in promoted), (2, before)]


def test_next_registration_completes_an_unfinished_promotion(
    mlflow_server: MlflowServer,
    registry: MlflowRegistry,
    name: str,
    register: Register,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    register(2, promoted=(1,))
    with monkeypatch.context() as patch:
        fail_to_publish_once(patch)
        with pytest.raises(MlflowUnavailableError):
            registry.promote(name, 2, reason="better")
    register(1)
    assert aliases(mlflow_server, name) == {"champion": "2", "challenger": "3"}


def test_version_deleted_before_its_promotion_was_completed_does_not_stop_later_promotions(
    mlflow_server: MlflowServer,
    registry: MlflowRegistry,
    name: str,
    register: Register,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    register(3, promoted=(1,))
    with monkeypatch.context() as patch:
        fail_to_publish_once(patch)
        with pytest.raises(MlflowUnavailableError):
            registry.promote(name, 2, reason="better")
    delete_version(mlflow_server, name, 2)
    with pytest.raises(InvalidInputError, match=f"champion of {name}: .* version 2, "):
        registry.champion(name)
    registry.promote(name, 3, reason="better than 2")
    assert champion(registry, name) == 3
    assert history(registry, name) == [(1, None), (2, 1), (3, 1)]


def test_unfinished_promotion_is_completed_after_its_predecessor_was_deleted(
    mlflow_server: MlflowServer,
    registry: MlflowRegistry,
    name: str,
    register: Register,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    register(2, promoted=(1,))
    with monkeypatch.context() as patch:
        fail_to_publish_once(patch)
        with pytest.raises(MlflowUnavailableError):
            registry.promote(name, 2, reason="better")
    delete_version(mlflow_server, name, 1)
    assert champion(registry, name) == 2
    registry.promote(name, 2, reason="a retry")
    assert aliases(mlflow_server, name) == {"champion": "2"}
    assert history(registry, name) == [(1, None), (2, 1)]


def test_champion_chosen_by_a_user_is_reported_with_the_champion_before(
    mlflow_server: MlflowServer,
    registry: MlflowRegistry,
    name: str,
    register: Register,
    promote_task: Callable[..., Any],
) -> None:
    register(3, promoted=(1, 2))
    mlflow_server.post("/registered-models/alias", {"name": name, "alias": "champion", "version": "3"})
    for _ in range(2):
        result = promote_task(3, 2)
        assert (result["verdict"], result["previous_version"]) == ("already champion", 2)
    assert history(registry, name) == [(1, None), (2, 1), (3, 2)], "recorded once"


def test_deleted_version_of_an_evaluation_is_named(
    mlflow_server: MlflowServer, name: str, register: Register, promote_task: Callable[..., Any]
) -> None:
    register(3, promoted=(1,))
    delete_version(mlflow_server, name, 3)
    register(1)
    with pytest.raises(AirflowFailException, match=rf"version: got 3, expected a version of '{name}' \(1, 2, 4\)"):
        promote_task(3, 1)


def test_version_copied_to_another_model_in_mlflow_keeps_manifest_and_files(
    mlflow_server: MlflowServer, registry: MlflowRegistry, name: str, register: Register, tmp_path: Path
) -> None:
    (original,) = register(1)
    described = mlflow_server.get("/model-versions/get", name=name, version=1)["model_version"]
    mlflow_server.post("/registered-models/create", {"name": f"{name}-production"})
    copied = {"source": f"models:/{name}/1", "run_id": described["run_id"], "tags": described["tags"]}
    mlflow_server.post("/model-versions/create", {"name": f"{name}-production", **copied})
    (version,) = registry.versions(f"{name}-production")
    assert version.files == original.files
    registry.fetch(version, tmp_path / "fetched")


def test_version_without_its_manifest_tag_does_not_lose_its_digests(
    mlflow_server: MlflowServer, registry: MlflowRegistry, name: str, register: Register
) -> None:
    register(1)
    mlflow_server.delete("/model-versions/delete-tag", {"name": name, "version": "1", "key": "paceline.manifest"})
    with pytest.raises(InvalidInputError, match=rf"tag paceline\.manifest of {name} version 1: got None, expected"):
        registry.version(name, 1)


def test_promotion_with_a_changed_tag_is_named(
    mlflow_server: MlflowServer, registry: MlflowRegistry, name: str, register: Register
) -> None:
    register(1, promoted=(1,))
    place = {"name": f"{name}.promotions", "version": "1"}
    for tag in ("paceline.version", "paceline.previous", "paceline.seen"):
        mlflow_server.post("/model-versions/set-tag", {**place, "key": tag, "value": "1st"})
        with pytest.raises(InvalidInputError, match=rf"tags of {re.escape(name)}\.promotions version 1: got .*'1st'"):
            registry.history(name)


def test_deleted_experiment_is_named(mlflow_server: MlflowServer, name: str, register: Register) -> None:
    register(1)
    found = mlflow_server.get("/experiments/get-by-name", experiment_name=name)["experiment"]
    mlflow_server.post("/experiments/delete", {"experiment_id": found["experiment_id"]})
    with pytest.raises(InvalidInputError, match=rf"experiment {name}: got 'deleted', .* id {found['experiment_id']}"):
        register(1)
    mlflow_server.post("/experiments/restore", {"experiment_id": found["experiment_id"]})
    assert [one.version for one in register(1)] == [2]


def test_file_name_that_mlflow_refuses_is_named(registry: MlflowRegistry, name: str, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights#1.bin").touch()
    with pytest.raises(InvalidInputError, match=r"model_dir: got 'weights#1\.bin', expected .*Invalid path"):
        registry.register(tmp_path / "model", name=name)
