"""What every registry guarantees: in a local folder, in an object store without folders, and on an MLflow server."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tests.unit.registry.stores import Store
from upath import UPath

from paceline.errors import InvalidInputError
from paceline.registry import ChampionHeldError, MlflowRegistry, ModelChangedError, Registry, storage


def test_version_stores_files_metrics_window_and_lineage(
    registry: Registry, name: str, model_dir: Path, tmp_path: Path
) -> None:
    made = registry.register(
        model_dir,
        name=name,
        metrics={"auc": 0.7},
        data_window={"windows": ["2013-06", "2013-07"]},
        lineage={"dag_id": "retrain"},
    )
    read = registry.version(name, 1)
    assert read == made
    assert (read.metrics, read.data_window) == ({"auc": 0.7}, {"windows": ["2013-06", "2013-07"]})
    assert read.lineage == {"dag_id": "retrain"}
    assert set(read.files) == {"weights.pt", "vocabulary/größe 1.json", "empty"}
    assert read.files["weights.pt"].size_bytes == 7000
    fetched = registry.fetch(read, tmp_path / "fetched")
    assert (fetched / "weights.pt").read_bytes() == b"weights" * 1000
    assert (fetched / "vocabulary" / "größe 1.json").read_text() == '["AA", "UA"]'
    assert (fetched / "empty").read_bytes() == b""


def test_summaries_are_of_the_newest_versions_and_name_the_signed_ones(
    store: Store, name: str, model_dir: Path
) -> None:
    for key in (None, None, "k" * 32):
        store.open(key).register(model_dir, name=name, metrics={"auc": 0.7}, lineage={"dag_id": "retrain"})
    registry = store.open()
    found = registry.summaries(name, 2)
    assert [(one.version, one.signed) for one in found] == [(3, True), (2, False)]
    version = registry.version(name, 3)
    assert found[0].created_at == version.created_at
    if not isinstance(registry, MlflowRegistry):  # which reads no artifacts for a summary
        assert (found[0].metrics, found[0].lineage) == (version.metrics, version.lineage)
    assert registry.summaries(f"{name}-other", 2) == []
    assert [registry.summary(name, number) for number in (3, 2)] == found
    missing = [(name, 0), (name, 4), (name, 2**70), (f"{name}-other", 1)]
    assert [registry.summary(*place) for place in missing] == [None] * 4


def test_executable_bit_is_kept_and_no_other(registry: Registry, name: str, model_dir: Path, tmp_path: Path) -> None:
    (model_dir / "predict").write_text("#!/bin/sh\necho late\n")
    (model_dir / "predict").chmod(0o6750)
    (model_dir / "weights.pt").chmod(0o1666)
    made = registry.register(model_dir, name=name)
    fetched = registry.fetch(registry.version(name, 1), tmp_path / "fetched")
    assert subprocess.run([fetched / "predict"], stdout=subprocess.PIPE, check=True).stdout == b"late\n"
    modes = {path.name: path.stat().st_mode & 0o7777 for path in fetched.iterdir()}
    assert modes["predict"] == modes["weights.pt"] | (modes["weights.pt"] & 0o444) >> 2
    assert not modes["weights.pt"] & 0o7111
    assert [path for path, record in made.files.items() if record.executable] == ["predict"]


def test_digest_covers_the_executable_bit_and_is_otherwise_that_of_earlier_releases(
    registry: Registry, name: str, model_dir: Path, tmp_path: Path
) -> None:
    plain = "d38075a54b01950c8e00cc89965e21e22eeb652a91ad1bbefa71611e40d6453c"
    assert registry.register(model_dir, name=name).digest == storage.digest_of(UPath(model_dir), "model") == plain
    (model_dir / "empty").chmod(0o744)
    changed = storage.digest_of(UPath(model_dir), "model")
    assert changed != plain
    with pytest.raises(ModelChangedError, match=f"files with the digest {plain}"):
        registry.register(model_dir, name=name, digest=plain)
    version = registry.register(model_dir, name=name, digest=changed)
    assert version.digest == registry.version(name, version.version).digest == changed
    fetched = registry.fetch(version, tmp_path / "fetched")
    assert storage.digest_of(UPath(fetched), "model") == changed


def test_fetch_of_another_version_removes_the_files_of_the_earlier_one_and_no_others(
    registry: Registry, name: str, model_dir: Path, tmp_path: Path
) -> None:
    for path in ("a/b/1", "own notes", "changed"):
        (model_dir / path).parent.mkdir(parents=True, exist_ok=True)
        (model_dir / path).write_text(f"model's {path}")
    first = registry.register(model_dir, name=name)
    (tmp_path / "smaller").mkdir()
    (tmp_path / "smaller" / "weights.pt").write_text("new")
    second = registry.register(tmp_path / "smaller", name=name)
    destination = registry.fetch(first, tmp_path / "served")
    (destination / "vocabulary" / "own words").write_text("own")
    (destination / "own").mkdir()
    (destination / "own notes").unlink()
    (destination / "own notes").symlink_to(model_dir / "own notes")
    (destination / "changed").write_text("own")
    registry.fetch(second, destination)
    assert {str(path.relative_to(destination)) for path in destination.rglob("*")} == {
        "weights.pt", "vocabulary", "vocabulary/own words", "own", "own notes", "changed"
    }  # fmt: skip
    assert (destination / "weights.pt").read_text() == "new"


def test_versions_are_numbered_and_do_not_change_with_their_source_folder(
    store: Store, registry: Registry, name: str, model_dir: Path, tmp_path: Path
) -> None:
    reader = store.open()
    assert reader.versions(name) == []
    first = registry.register(model_dir, name=name)
    (model_dir / "weights.pt").write_bytes(b"new")
    second = registry.register(model_dir, name=name)
    assert reader.versions(name) == [first, second]
    assert [first.version, second.version] == [1, 2]
    assert (registry.fetch(first, tmp_path / "1") / "weights.pt").read_bytes() == b"weights" * 1000
    assert (registry.fetch(second, tmp_path / "2") / "weights.pt").read_bytes() == b"new"


def test_same_key_returns_the_same_version(registry: Registry, name: str, model_dir: Path) -> None:
    first = registry.register(model_dir, name=name, key="dag/run/'task'")
    assert first.key == "dag/run/'task'"
    assert registry.register(model_dir, name=name, key="dag/run/'task'") == first
    assert registry.register(model_dir, name=name, key="dag/run2/'task'").version == 2
    assert registry.register(model_dir, name=f"{name}-2", key="dag/run/'task'").version == 1


def test_repeated_promotion_changes_the_champion_once_and_history_is_kept(
    store: Store, registry: Registry, name: str, model_dir: Path
) -> None:
    for _ in range(3):
        registry.register(model_dir, name=name)
    assert registry.champion(name) is registry.champion_number(name) is registry.last_promotion(name) is None
    assert registry.history(name) == []
    first = registry.promote(name, 1, reason="the first", expected_champion=None)
    assert registry.promote(name, 1, reason="a retry") == first
    registry.promote(name, 2, reason="auc 0.70 -> 0.75")
    with pytest.raises(InvalidInputError, match=f"got 1, expected the champion of '{name}', version 2"):
        registry.promote(name, 3, reason="better than 1", expected_champion=1)
    registry.promote(name, 1, reason="rolled back")
    reader = store.open()
    assert reader.champion(name) == registry.version(name, 1)
    history = reader.history(name)
    assert history[0] == first
    assert (reader.champion_number(name), reader.last_promotion(name)) == (1, history[-1])
    assert reader.history(name, newest=2) == history[-2:]
    assert [(p.name, p.version, p.previous, p.reason) for p in history] == [
        (name, 1, None, "the first"),
        (name, 2, 1, "auc 0.70 -> 0.75"),
        (name, 1, 2, "rolled back"),
    ]


@pytest.mark.parametrize("bad", ["", "..", ".hidden", "a/b", "a\\b", "a b", "x" * 129, "a\n", "s3://x", None, 3])
def test_invalid_model_name_is_rejected(registry: Registry, model_dir: Path, bad: str) -> None:
    for call in (
        lambda: registry.register(model_dir, name=bad),
        lambda: registry.versions(bad),
        lambda: registry.history(bad),
        lambda: registry.champion(bad),
        lambda: registry.promote(bad, 1, reason=""),
    ):
        with pytest.raises(InvalidInputError, match=r"^name: got .* expected 1 to 128 letters"):
            call()


def test_promoting_a_missing_version_lists_the_existing_versions(
    registry: Registry, name: str, model_dir: Path
) -> None:
    registry.register(model_dir, name=name)
    for version in (0, 2, -1, "../1"):
        with pytest.raises(InvalidInputError, match=rf"version: got .*, expected a version of '{name}' \(1\)"):
            registry.promote(name, version, reason="")  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match=r"version: got 1, expected a version of 'other' \(none yet\)"):
        registry.version("other", 1)


def test_folder_that_is_empty_or_has_links_or_odd_names_is_rejected(
    registry: Registry, name: str, tmp_path: Path
) -> None:
    (tmp_path / "empty" / "inner").mkdir(parents=True)
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "weights").symlink_to("/etc/hostname")
    for folder, file in (("backslash", "a\\b"), ("latin-1", "gr\udcf6\udcdfe")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / file).write_text("1")
        with pytest.raises(InvalidInputError, match=r"model_dir: got .* expected file names in UTF-8"):
            registry.register(tmp_path / folder, name=name)
    for folder in ("missing", "empty", "linked"):
        with pytest.raises(InvalidInputError, match=r"^model_dir: got .*" + folder):
            registry.register(tmp_path / folder, name=name)
    assert registry.versions(name) == []


@pytest.mark.parametrize(
    ("argument", "field"),
    [
        ({"metrics": {"auc": float("nan")}}, "metrics.auc: got nan"),
        ({"metrics": {"auc": "0.7"}}, "metrics.auc: got '0.7'"),
        ({"metrics": {"auc": 10**400}}, "metrics.auc: got 1000"),
        ({"lineage": {"author": "\ud800"}}, "lineage: got"),
        ({"lineage": {"model": object()}}, "lineage: got"),
        ({"data_window": {"to": {1, 2}}}, "data_window: got"),
    ],
)
def test_invalid_manifest_values_are_rejected_before_a_version_exists(
    registry: Registry, name: str, model_dir: Path, argument: dict[str, object], field: str
) -> None:
    with pytest.raises(InvalidInputError, match=field):
        registry.register(model_dir, name=name, **argument)  # type: ignore[arg-type]
    assert registry.versions(name) == []


def test_fetch_rejects_a_version_with_changed_or_removed_files(
    store: Store, registry: Registry, name: str, model_dir: Path, tmp_path: Path
) -> None:
    version = registry.register(model_dir, name=name)
    weights = store.folder(version) / "weights.pt"
    weights.write_bytes(b"swapped")
    with pytest.raises(
        InvalidInputError, match=r"weights\.pt: got 'sha256 .* as in the manifest; the file has changed"
    ):
        registry.fetch(version, tmp_path / "fetched")
    weights.unlink()
    with pytest.raises(InvalidInputError, match=r"weights\.pt: got 'no file'"):
        registry.fetch(version, tmp_path / "fetched2")


def test_held_champion_is_replaced_only_by_a_person(
    store: Store, registry: Registry, name: str, model_dir: Path
) -> None:
    for _ in range(2):
        registry.register(model_dir, name=name)
    registry.promote(name, 1, "first")
    registry.promote(name, 2, "better", expected_champion=1)
    held = registry.promote(name, 1, "back to 1", hold=True)
    assert (held.previous, held.hold) == (2, True)
    assert registry.promote(name, 1, "again", hold=True) == held
    for expected in (1, 2):
        with pytest.raises(
            ChampionHeldError, match="version: got 2, expected 1, the champion, which is held: back to 1"
        ):
            store.open().promote(name, 2, "better", expected_champion=expected)
    assert registry.promote(name, 1, "a task", expected_champion=1) == held, "a task does not release the champion"
    released = registry.promote(name, 1, "2 is mended")
    assert (released.version, released.previous, released.hold) == (1, 1, False)
    assert registry.promote(name, 2, "better", expected_champion=1).previous == 1
    assert [promotion.version for promotion in registry.history(name)] == [1, 2, 1, 1, 2]


def test_person_replaces_a_held_champion(registry: Registry, name: str, model_dir: Path) -> None:
    for _ in range(2):
        registry.register(model_dir, name=name)
    registry.promote(name, 1, "first", hold=True)
    assert not registry.promote(name, 2, "chosen").hold
    assert registry.promote(name, 1, "better", expected_champion=2).version == 1
