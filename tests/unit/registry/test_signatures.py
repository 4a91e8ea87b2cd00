"""Signed versions: what a registry with a signing key accepts after an attacker has changed its storage."""

from __future__ import annotations

import hashlib
import json
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from airflow.sdk.exceptions import AirflowFailException
from tests.mlflow_server import MlflowServer
from tests.unit.registry.stores import MlflowStore, Store

from paceline.errors import InvalidInputError
from paceline.operators import PromoteOperator
from paceline.registry import FileRecord, FileRegistry, MlflowRegistry, ModelVersion, Registry
from paceline.registry._signature import Signer
from paceline.registry.manifest import decode, encode

KEY, OTHER_KEY = "k" * 32, "o" * 32
UNSIGNED = "expected the signature of these contents with the registry's signing key"


@pytest.fixture
def signed(store: Store) -> Registry:
    return store.open(KEY)


def register(
    registry: Registry, model_dir: Path, name: str, key: str | None = None, reference: Path | None = None
) -> ModelVersion:
    return registry.register(
        model_dir,
        name=name,
        metrics={"auc": 1 / 3, "größe": 1e-300, "rows": 10**15},
        data_window={"source": "SELECT 1", "parameters": [1, 2.5, None, True, {"ü": "é"}]},
        lineage={"dag_id": "retrain"},
        key=key,
        reference=reference,
    )


def assert_rejected(registry: Registry, name: str, number: int) -> None:
    for call in (
        lambda: registry.version(name, number),
        lambda: registry.promote(name, number, reason="better"),
    ):
        with pytest.raises(InvalidInputError, match=f"signature of {name} version {number}: .*{UNSIGNED}"):
            call()
    assert number not in [version.version for version in registry.versions(name)]


def test_signed_version_is_accepted_with_the_key_and_without_one(
    store: Store, signed: Registry, name: str, model_dir: Path, tmp_path: Path
) -> None:
    made = register(signed, model_dir, name, key="run")
    assert register(store.open(f"{KEY}\n"), model_dir, name, key="run") == made
    signed.promote(name, 1, reason="the first")
    for reader in (store.open(KEY), store.open()):
        assert reader.champion(name) == made
        assert reader.versions(name) == [made]
        assert (reader.fetch(made, tmp_path / "fetched") / "weights.pt").read_bytes() == b"weights" * 1000


def test_version_without_a_signature_or_of_another_key_is_rejected(
    store: Store, signed: Registry, name: str, model_dir: Path, tmp_path: Path
) -> None:
    for writer in (store.open(), store.open(OTHER_KEY)):
        version = register(writer, model_dir, name)
        writer.promote(name, version.version, reason="better")
        assert_rejected(signed, name, version.version)
        with pytest.raises(InvalidInputError, match=UNSIGNED):
            signed.champion(name)
        with pytest.raises(InvalidInputError, match=UNSIGNED):
            signed.fetch(version, tmp_path / "fetched")
    assert not (tmp_path / "fetched").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"metrics": {"auc": 0.9}},
        {"data_window": {"source": "DROP TABLE flights"}},
        {"lineage": {}},
        {"key": "other"},
        {"files": {"weights.pt": {"size_bytes": 7, "sha256": hashlib.sha256(b"planted").hexdigest()}}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_changed_manifest_is_rejected(
    store: Store, signed: Registry, name: str, model_dir: Path, change: dict[str, Any]
) -> None:
    version = register(signed, model_dir, name)
    store.change_manifest(version, **change)
    store.open().version(name, 1)  # without a key, the change is not noticed
    assert_rejected(signed, name, 1)


@pytest.mark.parametrize("part", ["size_bytes", "sha256", "executable"])
def test_record_of_each_file_is_signed(store: Store, signed: Registry, name: str, model_dir: Path, part: str) -> None:
    version = register(signed, model_dir, name)
    files = json.loads(store.manifest(version).read_text())["files"]
    files["empty"][part] = {"size_bytes": 1, "sha256": "0" * 64, "executable": True}[part]
    store.change_manifest(version, files=files)
    assert_rejected(signed, name, 1)


def test_signed_version_under_another_name_or_number_is_rejected(
    store: Store, signed: Registry, name: str, model_dir: Path
) -> None:
    version = register(signed, model_dir, name, key="run")
    for other, number in ((name, 2), (f"{name}-other", 1)):
        store.copy(version, other, number)
        assert_rejected(signed, other, number)
    assert signed.version(name, 1) == version


def test_changed_file_of_a_signed_version_is_rejected(
    store: Store, signed: Registry, name: str, model_dir: Path, tmp_path: Path
) -> None:
    version = register(signed, model_dir, name)
    (store.folder(version) / "weights.pt").write_text("planted")
    with pytest.raises(InvalidInputError, match="the file has changed"):
        signed.fetch(signed.version(name, 1), tmp_path / "fetched")


def test_manifest_and_file_are_not_read_beyond_their_limits(
    store: Store, signed: Registry, name: str, model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = register(signed, model_dir, name)
    with (store.folder(version) / "weights.pt").open("ab") as file:
        file.write(b"more")
    with pytest.raises(InvalidInputError, match="the file has changed"):
        signed.fetch(version, tmp_path / "fetched")
    assert not list((tmp_path / "fetched").iterdir())
    monkeypatch.setattr("paceline.registry.storage.MAX_RECORD_BYTES", 10)
    with pytest.raises(InvalidInputError):
        signed.version(name, 1)


def test_champion_can_be_set_back_to_an_earlier_signed_version_but_to_no_other(
    store: Store, signed: Registry, name: str, model_dir: Path
) -> None:
    first = register(signed, model_dir, name)
    signed.promote(name, register(signed, model_dir, name).version, reason="better")
    store.set_champion(first)
    assert store.open(KEY).champion(name) == first
    store.set_champion(register(store.open(), model_dir, name))
    with pytest.raises(InvalidInputError, match=UNSIGNED):
        store.open(KEY).champion(name)


def test_earlier_version_can_be_registered_again_with_a_signature(
    store: Store, signed: Registry, name: str, model_dir: Path, tmp_path: Path
) -> None:
    unsigned = store.open()
    (tmp_path / "rows.csv").write_text("age\n29\n")
    champion = register(unsigned, model_dir, name, reference=tmp_path / "rows.csv")
    unsigned.promote(name, 1, reason="the first")
    files = unsigned.fetch(champion, tmp_path / "fetched")
    again = register(signed, files, name, reference=unsigned.fetch_reference(champion, tmp_path / "reference"))
    assert again.reference is not None
    signed.promote(name, again.version, reason="signed", expected_champion=1)
    assert signed.champion(name) == again
    assert signed.versions(name) == [again]


@pytest.mark.parametrize("key", ["", "k" * 31, b"k" * 31, f"{'k' * 31}\n"])
def test_short_signing_key_is_rejected_without_showing_it(tmp_path: Path, key: Any) -> None:
    for make in (lambda: FileRegistry(tmp_path, signing_key=key), lambda: MlflowRegistry("http://x", signing_key=key)):
        with pytest.raises(InvalidInputError, match=r"signing_key: got '.* bytes', expected at least 32") as raised:
            make()
        assert "kk" not in str(raised.value)


def test_registration_does_not_return_an_unsigned_version_with_its_key(
    store: Store, signed: Registry, name: str, model_dir: Path
) -> None:
    register(store.open(), model_dir, name, key="run")
    with pytest.raises(InvalidInputError, match=UNSIGNED):
        register(signed, model_dir, name, key="run")


def test_signature_of_an_earlier_release_stays_valid() -> None:
    version = ModelVersion(
        name="flights",
        version=3,
        created_at=datetime(2030, 1, 2, 3, 4, 5, 678, tzinfo=timezone.utc),
        folder="files",
        files={"größe/weights.pt": FileRecord(size_bytes=0, sha256="0" * 64)},
        metrics={"auc": 1 / 3, "rows": 3},
        data_window={"parameters": [None, True, 1, 1.0, -0.0, 1e300, "ü"]},
    )
    signed = Signer(KEY).sign(version)
    assert signed.signature == "780d14ced4be004106fc5a5fb9866f6ef0a24c74d0f0d6b0d2582138a36b32e5"
    assert Signer(KEY).is_valid(decode(ModelVersion, encode(signed), "manifest.json"))


@pytest.mark.mlflow
def test_retry_signs_the_version_of_a_writer_that_died_before_it_unless_the_version_was_changed(
    mlflow_server: MlflowServer, name: str, model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MlflowStore(mlflow_server)
    killed = MlflowRegistry(mlflow_server.url, signing_key=KEY)
    monkeypatch.setattr(killed, "_sign", lambda *_: sys.exit(1))
    with pytest.raises(SystemExit):
        register(killed, model_dir, name, key="run")
    registry = store.open(KEY)
    assert_rejected(registry, name, 1)
    manifest = store.manifest(store.open().version(name, 1))
    original = manifest.read_text()
    store.write_manifest(store.open().version(name, 1), original.replace("retrain", "planted"))
    with pytest.raises(InvalidInputError, match=UNSIGNED):
        register(registry, model_dir, name, key="run")
    store.write_manifest(store.open().version(name, 1), original)
    assert register(registry, model_dir, name, key="run") == registry.version(name, 1)
    assert len(registry.versions(name)) == 1


@pytest.mark.mlflow
def test_registration_does_not_sign_an_earlier_version_under_another_number(
    mlflow_server: MlflowServer, name: str, model_dir: Path
) -> None:
    """A writer without the key copies the tags of a signed version, and sets the key of the next registration."""
    store = MlflowStore(mlflow_server)
    registry = store.open(KEY)
    described = store.describe(register(registry, model_dir, name, key="first"))
    copied = [tag for tag in described["tags"] if tag["key"] in ("paceline.manifest", "paceline.signed_contents")]
    planted = {"key": "paceline.key", "value": hashlib.sha256(b"second").hexdigest()}
    body = {"name": name, "source": described["source"], "run_id": described["run_id"], "tags": [*copied, planted]}
    mlflow_server.post("/model-versions/create", body)
    with pytest.raises(InvalidInputError, match=r"key of .* version 2: got 'first'"):
        register(registry, model_dir, name, key="second")
    assert_rejected(registry, name, 2)


@pytest.mark.mlflow
@pytest.mark.parametrize("request_path", ["model-versions/create", "model-versions/set-tag"])
def test_signature_survives_a_lost_response(
    mlflow_server: MlflowServer, name: str, model_dir: Path, request_path: str
) -> None:
    registry = MlflowRegistry(mlflow_server.url, signing_key=KEY)
    register(registry, model_dir, f"{name}-first")
    lost = next(index for index, change in enumerate(mlflow_server.changes) if change.endswith(request_path))
    mlflow_server.clear()
    mlflow_server.lost.add(lost)
    made = register(registry, model_dir, name)
    assert mlflow_server.changes[lost].endswith(request_path)
    assert registry.versions(name) == [made]


@pytest.mark.mlflow
def test_promotion_task_uses_the_key_of_its_connection_on_mlflow(
    mlflow_server: MlflowServer, name: str, model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_MLFLOW_TEST", json.dumps({"conn_type": "mlflow", "host": mlflow_server.url}))
    monkeypatch.setenv("AIRFLOW_CONN_MODEL_KEY", json.dumps({"conn_type": "generic", "password": KEY}))
    store = MlflowStore(mlflow_server)
    scores = {"metric": "auc", "challenger": 0.8, "champion": None, "champion_version": None, "improvement": None}

    def promote(version: ModelVersion) -> Any:
        operator = PromoteOperator(
            task_id="promote",
            evaluation={"model": name, "version": version.version, **scores},
            registry="mlflow://mlflow_test",
            signing_conn_id="model_key",
        )
        return operator.execute({"ti": Mock(spec=["xcom_push"])})  # type: ignore[typeddict-item]

    with pytest.raises(AirflowFailException, match=UNSIGNED):
        promote(register(store.open(), model_dir, name))
    assert promote(register(store.open(KEY), model_dir, name))["promoted"]


@pytest.mark.mlflow
def test_version_of_another_tool_is_rejected_with_a_key(mlflow_server: MlflowServer, name: str) -> None:
    experiment = mlflow_server.post("/experiments/create", {"name": name})["experiment_id"]
    run = mlflow_server.post("/runs/create", {"experiment_id": experiment})["run"]["info"]
    (folder := mlflow_server.artifacts / run["artifact_uri"].partition(":/")[2] / "sklearn").mkdir(parents=True)
    (folder / "weights.bin").write_text("other")
    mlflow_server.post("/registered-models/create", {"name": name})
    source = f"{run['artifact_uri']}/sklearn"
    mlflow_server.post("/model-versions/create", {"name": name, "source": source, "run_id": run["run_id"]})
    assert_rejected(MlflowRegistry(mlflow_server.url, signing_key=KEY), name, 1)
