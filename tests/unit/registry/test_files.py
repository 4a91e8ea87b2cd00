"""The files of a ``FileRegistry``, in a local folder and in an object store without folders."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest
from upath import UPath

from paceline.errors import InvalidInputError
from paceline.registry import FileRegistry


@pytest.fixture(params=["local", "object store"])
def registry_root(request: pytest.FixtureRequest, tmp_path: Path) -> UPath:
    if request.param == "local":
        return UPath(tmp_path / "registry")
    return UPath(f"memory://{uuid.uuid4().hex}/registry")


@pytest.fixture
def registry(registry_root: UPath) -> FileRegistry:
    return FileRegistry(registry_root)


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    (folder / "vocabulary").mkdir(parents=True)
    (folder / "weights.pt").write_bytes(b"weights" * 1000)
    (folder / "vocabulary" / "carrier.json").write_text('["AA", "UA"]')
    return folder


def test_incomplete_version_is_hidden_until_a_retry_with_the_same_key_completes_it(
    registry: FileRegistry, model_dir: Path
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


def test_promotion_copied_to_another_file_name_is_ignored(registry: FileRegistry, model_dir: Path) -> None:
    registry.register(model_dir, name="flights")
    promotion = registry.promote("flights", 1, "the first")
    folder = registry.root / "flights" / "promotions"
    (folder / "2.json").write_bytes((folder / "000001.json").read_bytes())
    assert registry.history("flights") == [promotion]
    assert registry.champion("flights").version == 1


@pytest.mark.parametrize("content", ["", " \n"])
@pytest.mark.parametrize("record", ["versions/000001/manifest.json", "promotions/000001.json", "keys"])
def test_error_for_an_empty_record_names_the_file_and_says_that_it_is_empty(
    registry: FileRegistry, model_dir: Path, record: str, content: str
) -> None:
    registry.register(model_dir, name="flights", key="run")
    registry.promote("flights", 1, "the first")
    path = registry.root / "flights" / record
    path = next(path.iterdir()) if record == "keys" else path
    path.write_text(content)
    with pytest.raises(InvalidInputError, match=r"\.json: got 'an empty file', expected a JSON object$") as raised:
        (registry.register(model_dir, name="flights", key="run"), registry.champion("flights"))
    assert raised.value.field == str(path)


def test_promotion_of_another_model_is_rejected_with_its_file(registry: FileRegistry, model_dir: Path) -> None:
    for name in ("flights", "trains"):
        registry.register(model_dir, name=name)
        registry.promote(name, 1, "the first")
    path = registry.root / "flights" / "promotions" / "000001.json"
    path.write_bytes((registry.root / "trains" / "promotions" / "000001.json").read_bytes())
    with pytest.raises(
        InvalidInputError, match=r"flights/promotions/000001\.json: name: got 'trains', expected 'flights'"
    ):
        registry.champion("flights")


def test_error_for_a_record_with_a_lone_surrogate_names_the_file(registry: FileRegistry, model_dir: Path) -> None:
    registry.register(model_dir, name="flights")
    registry.promote("flights", 1, "the first")
    path = registry.root / "flights" / "promotions" / "000001.json"
    path.write_text(path.read_text().replace("the first", "\\ud800"))
    with pytest.raises(InvalidInputError, match=r"000001\.json: got '{.*, expected a JSON object \(invalid JSON: "):
        registry.history("flights")


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
    registry: FileRegistry, model_dir: Path, change: dict[str, object], message: str
) -> None:
    registry.register(model_dir, name="flights")
    path = registry.root / "flights" / "versions" / "000001" / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(InvalidInputError, match=message):
        registry.version("flights", 1)
    path.write_bytes(b"\x80\x04pickle")
    with pytest.raises(InvalidInputError, match=r"manifest\.json: got .*pickle.* expected a JSON object"):
        registry.versions("flights")
