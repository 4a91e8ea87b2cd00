"""``Registry`` in a local folder, and in an object store that has no folders and cannot rename objects."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest
from upath import UPath

from paceline.errors import InvalidInputError
from paceline.registry import Registry


@pytest.fixture(params=["local", "object store"])
def registry_root(request: pytest.FixtureRequest, tmp_path: Path) -> UPath:
    if request.param == "local":
        return UPath(tmp_path / "registry")
    return UPath(f"memory://{uuid.uuid4().hex}/registry")


@pytest.fixture
def registry(registry_root: UPath) -> Registry:
    return Registry(registry_root)


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    (folder / "vocabulary").mkdir(parents=True)
    (folder / "weights.pt").write_bytes(b"weights" * 1000)
    (folder / "vocabulary" / "carrier.json").write_text('["AA", "UA"]')
    return folder


def test_version_stores_files_metrics_window_and_lineage(registry: Registry, model_dir: Path, tmp_path: Path) -> None:
    made = registry.register(
        model_dir,
        name="flights",
        metrics={"auc": 0.7},
        data_window={"windows": ["2013-06", "2013-07"]},
        lineage={"dag_id": "retrain"},
    )
    read = registry.version("flights", 1)
    assert read == made
    assert (read.metrics, read.lineage) == ({"auc": 0.7}, {"dag_id": "retrain"})
    assert set(read.files) == {"weights.pt", "vocabulary/carrier.json"}
    assert read.files["weights.pt"].size_bytes == 7000
    fetched = registry.fetch(read, tmp_path / "fetched")
    assert (fetched / "weights.pt").read_bytes() == b"weights" * 1000
    assert (fetched / "vocabulary" / "carrier.json").read_text() == '["AA", "UA"]'


def test_versions_are_numbered_and_do_not_change_with_their_source_folder(
    registry: Registry, model_dir: Path, tmp_path: Path
) -> None:
    reader = Registry(str(registry.root))
    assert reader.versions("flights") == []
    first = registry.register(model_dir, name="flights")
    (model_dir / "weights.pt").write_bytes(b"new")
    second = registry.register(model_dir, name="flights")
    assert [v.version for v in reader.versions("flights")] == [1, 2]
    assert (registry.fetch(first, tmp_path / "1") / "weights.pt").read_bytes() == b"weights" * 1000
    assert (registry.fetch(second, tmp_path / "2") / "weights.pt").read_bytes() == b"new"


def test_same_key_returns_the_same_version(registry: Registry, model_dir: Path) -> None:
    first = registry.register(model_dir, name="flights", key="dag/run/task")
    assert registry.register(model_dir, name="flights", key="dag/run/task") == first
    assert registry.register(model_dir, name="flights", key="dag/run2/task").version == 2


def test_incomplete_version_is_hidden_until_a_retry_with_the_same_key_completes_it(
    registry: Registry, model_dir: Path
) -> None:
    registry.register(model_dir, name="flights", key="k")
    home = registry.root / "flights" / "versions" / "000001"
    (home / "manifest.json").unlink()
    assert registry.versions("flights") == []
    with pytest.raises(InvalidInputError, match="none yet"):
        registry.version("flights", 1)
    assert registry.register(model_dir, name="flights").version == 2
    again = registry.register(model_dir, name="flights", key="k")
    assert again.version == 1
    assert sorted(entry.name for entry in home.iterdir()) == sorted(["reserved", "manifest.json", again.folder])


def test_repeated_promotion_changes_the_champion_once_and_history_is_kept(registry: Registry, model_dir: Path) -> None:
    for _ in range(3):
        registry.register(model_dir, name="flights")
    assert registry.champion("flights") is None
    first = registry.promote("flights", 1, reason="the first", expected_champion=None)
    assert registry.promote("flights", 1, reason="a retry") == first
    registry.promote("flights", 2, reason="auc 0.70 -> 0.75")
    with pytest.raises(InvalidInputError, match="got 1, expected the champion of 'flights', version 2"):
        registry.promote("flights", 3, reason="better than 1", expected_champion=1)
    registry.promote("flights", 1, reason="rolled back")
    assert registry.champion("flights") == registry.version("flights", 1)
    assert [(p.version, p.previous, p.reason) for p in registry.history("flights")] == [
        (1, None, "the first"),
        (2, 1, "auc 0.70 -> 0.75"),
        (1, 2, "rolled back"),
    ]


@pytest.mark.parametrize("name", ["", "..", ".hidden", "a/b", "a\\b", "a b", "x" * 129, "a\n", "s3://x", None, 3])
def test_invalid_model_name_is_rejected(registry: Registry, model_dir: Path, name: str) -> None:
    for call in (
        lambda: registry.register(model_dir, name=name),
        lambda: registry.versions(name),
        lambda: registry.champion(name),
        lambda: registry.promote(name, 1, reason=""),
    ):
        with pytest.raises(InvalidInputError, match=r"^name: got .* expected 1 to 128 letters"):
            call()


def test_promoting_a_missing_version_lists_the_existing_versions(registry: Registry, model_dir: Path) -> None:
    registry.register(model_dir, name="flights")
    for version in (0, 2, -1, "../1"):
        with pytest.raises(InvalidInputError, match=r"version: got .*, expected a version of 'flights' \(1\)"):
            registry.promote("flights", version, reason="")  # type: ignore[arg-type]


def test_folder_that_is_empty_or_has_links_is_rejected(registry: Registry, tmp_path: Path) -> None:
    (tmp_path / "empty" / "inner").mkdir(parents=True)
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "weights").symlink_to("/etc/hostname")
    for folder in ("missing", "empty", "linked"):
        with pytest.raises(InvalidInputError, match=r"^model_dir: got .*" + folder):
            registry.register(tmp_path / folder, name="flights")
    assert not (registry.root / "flights").exists()


@pytest.mark.parametrize(
    ("argument", "field"),
    [
        ({"metrics": {"auc": float("nan")}}, "metrics.auc: got nan"),
        ({"metrics": {"auc": "0.7"}}, "metrics.auc: got '0.7'"),
        ({"lineage": {"model": object()}}, "lineage: got"),
        ({"data_window": {"to": {1, 2}}}, "data_window: got"),
    ],
)
def test_invalid_manifest_values_are_rejected_before_a_version_exists(
    registry: Registry, model_dir: Path, argument: dict[str, object], field: str
) -> None:
    with pytest.raises(InvalidInputError, match=field):
        registry.register(model_dir, name="flights", **argument)  # type: ignore[arg-type]
    assert not (registry.root / "flights").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"metrics": {"auc": "high"}}, r"manifest\.json: metrics\.auc: got 'high', expected .*number"),
        ({"version": 7}, r"manifest\.json: version: got 'flights 7', expected flights 1"),
        ({"files": {"../../etc/passwd": {"size_bytes": 1, "sha256": "0" * 64}}}, r"manifest\.json: files.*passwd"),
        ({"files": {"/etc/passwd": {"size_bytes": 1, "sha256": "0" * 64}}}, r"manifest\.json: files.*passwd"),
        ({"folder": "../../2/files"}, r"manifest\.json: folder: got '\.\./\.\./2/files', expected .*inside"),
        ({"files": {"weights.pt": {"size_bytes": 1, "sha256": "zz"}}}, r"manifest\.json: files\.weights\.pt\.sha256"),
    ],
)
def test_error_for_a_modified_manifest_names_file_and_field(
    registry: Registry, model_dir: Path, change: dict[str, object], message: str
) -> None:
    registry.register(model_dir, name="flights")
    path = registry.root / "flights" / "versions" / "000001" / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(InvalidInputError, match=message):
        registry.version("flights", 1)
    path.write_bytes(b"\x80\x04pickle")
    with pytest.raises(InvalidInputError, match=r"manifest\.json: got .*pickle.* expected invalid JSON"):
        registry.versions("flights")


def test_fetch_rejects_a_version_with_changed_or_removed_files(
    registry: Registry, model_dir: Path, tmp_path: Path
) -> None:
    version = registry.register(model_dir, name="flights")
    weights = registry.location(version) / "weights.pt"
    weights.write_bytes(b"swapped")
    with pytest.raises(
        InvalidInputError, match=r"weights\.pt: got 'sha256 .* as in the manifest; the file has changed"
    ):
        registry.fetch(version, tmp_path / "fetched")
    weights.unlink()
    with pytest.raises(InvalidInputError, match=r"weights\.pt: got 'no file'"):
        registry.fetch(version, tmp_path / "fetched2")
