"""A registry whose storage an attacker has changed: manifests, digests, names, and links to files outside."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.mlflow_server import MlflowServer
from tests.unit.registry.stores import MlflowStore, Store
from upath import UPath

from paceline.errors import InvalidInputError
from paceline.registry import FileRegistry, MlflowRegistry, Registry, storage
from paceline.registry._mlflow_server import MlflowServer as MlflowServerClient

SHA = "0" * 64


@pytest.fixture
def local_store(tmp_path: Path) -> Store:
    return Store(UPath(tmp_path / "registry"))


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """Return a file outside the registry."""
    (tmp_path / "outside").mkdir()
    path = tmp_path / "outside" / "weights.pt"
    path.write_text("secret")
    return path


@pytest.fixture
def destination(tmp_path: Path) -> Path:
    """Return a folder with an earlier version of the model."""
    folder = tmp_path / "served"
    folder.mkdir()
    (folder / "weights.pt").write_text("earlier")
    return folder


def replace_with_link(path: Path, target: Path) -> None:
    path.rename(path.with_name(f"original-{path.name}"))
    path.symlink_to(target)


def local_path(path: UPath) -> Path:
    return Path(path.path)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("digest", [None, "", "zz", "A" * 64, "0" * 63, 7, "missing"])
def test_manifest_without_a_valid_digest_of_each_file_is_rejected(
    store: Store, registry: Registry, name: str, model_dir: Path, digest: Any
) -> None:
    version = registry.register(model_dir, name=name)
    files = json.loads(store.manifest(version).read_text())["files"]
    files["weights.pt"]["sha256"] = digest
    if digest == "missing":
        del files["weights.pt"]["sha256"]
    store.change_manifest(version, files=files)
    with pytest.raises(InvalidInputError, match=r"(manifest|paceline)\.json: files\.weights\.pt\.sha256"):
        registry.version(name, 1)


def test_link_in_place_of_a_file_without_digest_is_not_copied(
    local_store: Store, model_dir: Path, secret: Path, destination: Path
) -> None:
    registry = local_store.open()
    version = registry.register(model_dir, name="flights")
    replace_with_link(local_path(local_store.folder(version)) / "weights.pt", secret)
    unchecked = version.model_copy(
        update={"files": {"weights.pt": version.files["weights.pt"].model_copy(update={"sha256": None})}}
    )
    with pytest.raises(InvalidInputError, match=r"weights\.pt\.sha256: got None"):
        registry.fetch(unchecked, destination)
    assert contents(destination) == {"weights.pt": b"earlier"}


@pytest.mark.parametrize(
    "path",
    ["", ".", "..", "../x", "a/../../x", "/etc/x", "a//b", "./a", "a/", "a\\b", "a\0b", "a\nb", "\x7f", "x" * 256,
     "ä" * 128, "a/" * 512 + "a"],
)  # fmt: skip
def test_manifest_with_an_unsafe_path_is_rejected(
    store: Store, registry: Registry, name: str, model_dir: Path, path: str
) -> None:
    version = registry.register(model_dir, name=name)
    store.change_manifest(version, files={path: {"size_bytes": 1, "sha256": SHA}})
    with pytest.raises(InvalidInputError, match=r"(manifest|paceline)\.json: files"):
        registry.version(name, 1)


@pytest.mark.parametrize("paths", [("weights", "Weights"), ("a/ß", "A/SS"), ("a", "a/b"), ("A", "a/b")])
def test_manifest_with_paths_that_replace_each_other_is_rejected(
    store: Store, registry: Registry, name: str, model_dir: Path, paths: tuple[str, str]
) -> None:
    version = registry.register(model_dir, name=name)
    store.change_manifest(version, files={path: {"size_bytes": 1, "sha256": SHA} for path in paths})
    with pytest.raises(InvalidInputError, match=r"\.json: files: .*differ in more than upper and lower case"):
        registry.version(name, 1)


def test_manifest_with_repeated_keys_is_rejected(store: Store, registry: Registry, name: str, model_dir: Path) -> None:
    version = registry.register(model_dir, name=name)
    text = store.manifest(version).read_text().replace('"weights.pt": {', '"weights.pt": {"size_bytes": 1,')
    store.write_manifest(version, text)
    with pytest.raises(InvalidInputError, match=r"expected a JSON object \(a key is repeated in .*size_bytes"):
        registry.version(name, 1)


@pytest.mark.parametrize("text", ["[]", "1", "", '{"files": ', "[" * 100_000])
def test_manifest_that_is_no_json_object_is_rejected(
    store: Store, registry: Registry, name: str, model_dir: Path, text: str
) -> None:
    version = registry.register(model_dir, name=name)
    store.write_manifest(version, text)
    with pytest.raises(InvalidInputError, match=r"(manifest|paceline)\.json: got "):
        registry.version(name, 1)


def test_file_that_the_manifest_does_not_list_is_left_out(
    store: Store, registry: Registry, name: str, model_dir: Path, tmp_path: Path
) -> None:
    version = registry.register(model_dir, name=name)
    (store.folder(version) / "sitecustomize.py").write_text("planted")
    fetched = registry.fetch(registry.version(name, 1), tmp_path / "fetched")
    assert contents(fetched) == contents(model_dir)


def test_failed_fetch_leaves_the_destination_unchanged(
    store: Store, registry: Registry, name: str, model_dir: Path, destination: Path
) -> None:
    version = registry.register(model_dir, name=name)
    (store.folder(version) / "weights.pt").write_text("swapped")
    with pytest.raises(InvalidInputError, match="the file has changed"):
        registry.fetch(version, destination)
    assert contents(destination) == {"weights.pt": b"earlier"}
    assert [entry.name for entry in destination.iterdir()] == ["weights.pt"]


def test_fetch_that_fails_while_it_replaces_files_leaves_the_destination_unchanged(
    registry: Registry, name: str, model_dir: Path, destination: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = registry.register(model_dir, name=name)
    for path in (destination / "empty", destination / "vocabulary" / "earlier"):
        path.parent.mkdir(exist_ok=True)
        path.write_text("earlier")
    before, moved = contents(destination), []

    def failing(rename: Callable[[Path, Path], None]) -> Callable[[Path, Path], None]:
        def rename_and_fail(source: Path, target: Path) -> None:
            if Path(target).parent == destination:
                moved.append(target)
                if len(moved) == 2:
                    raise OSError(errno.EBUSY, "Device or resource busy")
            rename(source, target)

        return rename_and_fail

    monkeypatch.setattr(os, "rename", failing(os.rename))
    monkeypatch.setattr(os, "replace", failing(os.replace))
    with pytest.raises(OSError, match="busy"):
        registry.fetch(version, destination)
    assert contents(destination) == before


def test_fetch_replaces_a_link_in_the_destination_and_not_its_target(
    registry: Registry, name: str, model_dir: Path, destination: Path, secret: Path
) -> None:
    version = registry.register(model_dir, name=name)
    replace_with_link(destination / "weights.pt", secret)
    (destination / "vocabulary").symlink_to(secret.parent)
    registry.fetch(version, destination)
    assert contents(destination).items() >= contents(model_dir).items()
    assert contents(secret.parent) == {"weights.pt": b"secret"}


@pytest.mark.parametrize("link", ["weights.pt", "vocabulary", ".", "..", "../..", "../../.."])
def test_link_in_the_registry_is_not_followed_by_fetch_even_if_its_contents_are_equal(
    local_store: Store, model_dir: Path, destination: Path, link: str
) -> None:
    registry = local_store.open()
    version = registry.register(model_dir, name="flights")
    linked = Path(os.path.normpath(local_path(local_store.folder(version)) / link))
    linked.rename(destination.parent / "moved")
    linked.symlink_to(destination.parent / "moved")
    with pytest.raises(InvalidInputError, match=rf"{linked}: got 'a symbolic link', expected a plain file or folder"):
        registry.fetch(version, destination)
    assert contents(destination) == {"weights.pt": b"earlier"}


@pytest.mark.parametrize("link", ["flights", "flights/versions", "flights/versions/000001", "manifest.json"])
def test_version_behind_a_link_is_rejected(local_store: Store, model_dir: Path, tmp_path: Path, link: str) -> None:
    registry = local_store.open()
    version = registry.register(model_dir, name="flights")
    linked = local_path(local_store.manifest(version) if link == "manifest.json" else local_store.root / link)
    linked.rename(tmp_path / "moved")
    linked.symlink_to(tmp_path / "moved")
    for call in (lambda: registry.version("flights", 1), lambda: registry.versions("flights")):
        with pytest.raises(InvalidInputError, match=rf"{linked}: got 'a symbolic link'"):
            call()


@pytest.mark.parametrize("link", ["flights", "flights/numbers", "flights/versions", "flights/keys"])
def test_registration_writes_nothing_behind_a_link(
    local_store: Store, model_dir: Path, tmp_path: Path, link: str
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    linked = local_path(local_store.root / link)
    linked.parent.mkdir(parents=True, exist_ok=True)
    linked.symlink_to(outside)
    with pytest.raises(InvalidInputError, match=rf"{linked}: got 'a symbolic link'"):
        local_store.open().register(model_dir, name="flights", key="k")
    assert list(outside.iterdir()) == []


def test_promotion_writes_nothing_behind_a_link(local_store: Store, model_dir: Path, tmp_path: Path) -> None:
    registry = local_store.open()
    registry.register(model_dir, name="flights")
    (tmp_path / "outside").mkdir()
    local_path(local_store.root / "flights" / "promotions").symlink_to(tmp_path / "outside")
    with pytest.raises(InvalidInputError, match="promotions: got 'a symbolic link'"):
        registry.promote("flights", 1, reason="better")
    assert list((tmp_path / "outside").iterdir()) == []


def test_named_pipe_in_the_registry_is_rejected_without_waiting(local_store: Store, model_dir: Path) -> None:
    registry = local_store.open()
    version = registry.register(model_dir, name="flights")
    for path in (local_path(local_store.folder(version)) / "weights.pt", local_path(local_store.manifest(version))):
        path.unlink()
        os.mkfifo(path)
        with pytest.raises(InvalidInputError, match=rf"{path}: got 'no plain file'"):
            registry.fetch(version if path.name == "weights.pt" else registry.version("flights", 1), model_dir)


def test_registry_whose_root_is_a_link_is_used(model_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "models").symlink_to(tmp_path / "disk")
    (tmp_path / "newest").symlink_to(model_dir)
    registry = FileRegistry(tmp_path / "models")
    version = registry.register(tmp_path / "newest", name="flights")
    assert contents(registry.fetch(version, tmp_path / "fetched")) == contents(model_dir)


@pytest.mark.parametrize("link", ["weights.pt", "vocabulary"])
def test_link_in_a_model_folder_is_rejected(
    store: Store, registry: Registry, name: str, model_dir: Path, secret: Path, link: str
) -> None:
    replace_with_link(model_dir / link, secret if link == "weights.pt" else secret.parent)
    for call in (lambda: registry.register(model_dir, name=name), lambda: storage.digest_of(UPath(model_dir), "model")):
        with pytest.raises(InvalidInputError, match=rf"model.*{link}', expected plain files and folders, not a symb"):
            call()
    assert registry.versions(name) == []


@pytest.mark.parametrize("unsafe", [os.fsdecode(b"mod\xe8le"), "a\\b"])
def test_unsafe_name_in_a_model_folder_is_rejected(registry: Registry, name: str, model_dir: Path, unsafe: str) -> None:
    (model_dir / unsafe).touch()
    for call in (lambda: registry.register(model_dir, name=name), lambda: storage.digest_of(UPath(model_dir), "model")):
        with pytest.raises(InvalidInputError, match=r"^model.*: got .*, expected file names in UTF-8"):
            call()


@pytest.mark.parametrize("link", ["weights.pt", "vocabulary"])
def test_link_that_replaces_a_checked_file_is_not_followed_by_register(
    registry: Registry, name: str, model_dir: Path, secret: Path, link: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (secret.parent / "größe 1.json").touch()

    def replacing(copy: Callable[..., Any]) -> Callable[..., Any]:
        def replace_and_copy(*arguments: Any) -> Any:
            if any(link in str(argument) for argument in arguments) and not (model_dir / link).is_symlink():
                replace_with_link(model_dir / link, secret if link == "weights.pt" else secret.parent)
            return copy(*arguments)

        return replace_and_copy

    monkeypatch.setattr(storage, "copy", replacing(storage.copy))
    monkeypatch.setattr(MlflowServerClient, "write", replacing(MlflowServerClient.write))
    with pytest.raises(InvalidInputError, match=rf"{link}: got 'a symbolic link'"):
        registry.register(model_dir, name=name)
    assert registry.versions(name) == []


@pytest.mark.parametrize("files", [("Weights", "weights"), ("a\nb",)])
def test_model_folder_with_names_that_no_manifest_may_have_is_rejected(
    registry: Registry, name: str, tmp_path: Path, files: tuple[str, ...]
) -> None:
    (tmp_path / "odd").mkdir()
    for file in files:
        (tmp_path / "odd" / file).touch()
    with pytest.raises(InvalidInputError, match=r"model_dir: got .*expected file names"):
        registry.register(tmp_path / "odd", name=name)


def test_object_whose_name_leads_out_of_the_model_folder_is_rejected(registry: Registry, name: str) -> None:
    bucket = UPath(f"memory://{uuid.uuid4().hex}")
    (bucket / "model" / "weights.pt").write_text("weights")
    bucket.fs.store[f"{bucket.path}/model/../planted"] = bucket.fs.store[(bucket / "model" / "weights.pt").path]
    with pytest.raises(InvalidInputError, match=r"model_dir: got .*names of files and folders other than"):
        registry.register(bucket / "model", name=name)
    assert registry.versions(name) == []


@pytest.mark.mlflow
def test_link_in_a_local_artifact_folder_is_not_followed(
    mlflow_server: MlflowServer, name: str, model_dir: Path, tmp_path: Path, secret: Path
) -> None:
    mlflow_server.post("/experiments/create", {"name": name, "artifact_location": str(tmp_path / "artifacts")})
    registry = MlflowRegistry(mlflow_server.url)
    version = registry.register(model_dir, name=name)
    (weights,) = (tmp_path / "artifacts").glob("*/artifacts/model/weights.pt")
    replace_with_link(weights, secret)
    with pytest.raises(InvalidInputError, match=r"model/weights\.pt: got 'a symbolic link'"):
        registry.fetch(version, tmp_path / "fetched")
    assert contents(tmp_path / "fetched") == {}


@pytest.mark.mlflow
def test_registration_does_not_return_a_version_with_the_key_of_another(
    mlflow_server: MlflowServer, name: str, model_dir: Path
) -> None:
    store, registry = MlflowStore(mlflow_server), MlflowRegistry(mlflow_server.url)
    version = registry.register(model_dir, name=name, key="monday")
    tag = {"key": "paceline.key", "value": hashlib.sha256(b"tuesday").hexdigest()}
    store.server.post("/model-versions/set-tag", {"name": name, "version": "1", **tag})
    with pytest.raises(InvalidInputError, match=r"key of .* version 1: got 'monday', expected 'tuesday'"):
        registry.register(model_dir, name=name, key="tuesday")
    assert registry.version(name, 1) == version


@pytest.mark.parametrize("scheme", ["local://", "FILE://", "simplecache::file://", "filecache::local://"])
def test_remote_mlflow_server_cannot_choose_local_folders_by_another_scheme(tmp_path: Path, scheme: str) -> None:
    from airflow.sdk import ObjectStoragePath

    (tmp_path / "weights.pt").touch()
    for open_path in (UPath, ObjectStoragePath):
        server = MlflowRegistry("https://mlflow.example.com", open_path=open_path)._server
        with pytest.raises(InvalidInputError, match="artifact_uri: got"):
            server.list_files(f"{scheme}{tmp_path}")
