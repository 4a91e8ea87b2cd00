"""``paceline backup`` and ``paceline restore``: copies of a model registry in a folder, and of files that it needs.

A backup is a registry, which ``paceline model`` can read. Beside the versions, ``sources/000003/`` has the training
data of the champion and the champion before it, if the registry itself has no copy.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from paceline.airflow._prune_items import counted
from paceline.errors import InvalidInputError

if TYPE_CHECKING:
    from upath import UPath

    from paceline.registry import FileRegistry, ModelVersion

_PLACE = "/data/models, s3://CONN@bucket/models"


def add_commands(commands: Any) -> None:
    """Add ``paceline backup`` and ``paceline restore`` to the subparsers."""
    backup = commands.add_parser(
        "backup", help="copy a model registry to another folder", description="Copy a model registry to another folder."
    )
    backup.add_argument("registry", metavar="REGISTRY", help=f"the registry: {_PLACE}")
    backup.add_argument("backup", metavar="BACKUP", help="folder or URL: empty, or an earlier backup, which is updated")
    backup.set_defaults(run=_back_up)
    restore = commands.add_parser(
        "restore", help="copy a backup to an empty registry", description="Copy a backup to an empty registry."
    )
    restore.add_argument("backup", metavar="BACKUP", help="the backup, or another registry")
    restore.add_argument("registry", metavar="REGISTRY", help=f"empty, or with a part of the backup: {_PLACE}")
    restore.add_argument(
        "--sources",
        action="store_true",
        help="also write the training data of champions, which the registry does not own, to its paths of before",
    )
    restore.set_defaults(run=_restore)
    for command in (backup, restore):
        command.add_argument(
            "--signing-conn-id",
            metavar="CONN_ID",
            help="connection whose password is the key of signed versions: copy only versions with its signature",
        )


def _back_up(options: argparse.Namespace) -> int:
    registry = _open("REGISTRY", options.registry, options.signing_conn_id)
    target = _target("BACKUP", options.backup)
    is_complete = _copy(registry, target.root, "backup", has_deleted=True)
    for version, path in _sources(target):  # the registry may have another champion by now
        try:
            _copy_file(path, target.root / _source_folder(version))
        except Exception as error:  # an object store may raise any exception
            print(f"paceline: {_describe(version)} needs {path}, which is not copied: {error}", file=sys.stderr)
            is_complete = False
    return 0 if is_complete else 1


def _restore(options: argparse.Namespace) -> int:
    backup = _open("BACKUP", options.backup, options.signing_conn_id)
    target = _target("REGISTRY", options.registry)
    is_complete = _copy(backup, target.root, "registry", has_deleted=False)
    for version, path in _sources(backup):
        copy = backup.root / _source_folder(version) / path.name
        try:
            if path.exists():
                continue
            if options.sources and copy.exists():
                _copy_file(copy, path.parent)
                print(f"{path}: training data of {_describe(version)}")
                continue
            problem = "missing: add --sources to write it" if copy.exists() else "missing, and the backup lacks it, too"
        except Exception as error:  # an object store may raise any exception
            problem = f"not available: {error}"
        print(f"paceline: {_describe(version)} needs {path}, which is {problem}", file=sys.stderr)
        is_complete = False
    return 0 if is_complete else 1


def _copy(source: FileRegistry, target: UPath, field: str, *, has_deleted: bool) -> bool:
    """Copy all models. Return whether all versions have been copied."""
    from paceline.registry.copies import copy_registry

    is_complete = True
    for copied in copy_registry(source, target, has_deleted=has_deleted):
        champion = "no champion" if copied.champion is None else f"champion {copied.champion}"
        versions = counted(copied.versions, "version")
        print(f"{copied.name}: {versions} ({copied.new} new in the {field}), {champion}")
        for problem in copied.problems:
            print(f"paceline: {problem}", file=sys.stderr)
            is_complete = False
    return is_complete


def _open(field: str, location: str, signing_conn_id: str | None) -> FileRegistry:
    from paceline.airflow._model_command import open_location
    from paceline.registry import FileRegistry

    if location.startswith("mlflow://"):
        accepted = (
            "a folder or an object storage URL. Back up an MLflow server by its own means: a dump of its database "
            "(--backend-store-uri) and a copy of its artifacts (--artifacts-destination)"
        )
        raise InvalidInputError(field, location, accepted)
    registry = open_location(field, location, signing_conn_id)
    assert isinstance(registry, FileRegistry)
    return registry


def _target(field: str, location: str) -> FileRegistry:
    from paceline.airflow.places import check_registry_location, storage_path
    from paceline.registry import FileRegistry

    if location.startswith("mlflow://"):
        raise InvalidInputError(field, location, "a folder or an object storage URL")
    return FileRegistry(storage_path(check_registry_location(field, location)))


def _sources(registry: FileRegistry) -> Iterator[tuple[ModelVersion, UPath]]:
    """Yield the champions, and the champions before them, whose training data is a file that the registry lacks."""
    from upath import UPath

    from paceline.airflow.places import storage_path
    from paceline.airflow.windows import is_sql
    from paceline.registry.base import champion_before, reference_name

    for name in registry.models():
        history = registry.history(name)
        champion = history[-1].version if history else None
        for number in sorted({champion, champion_before(history, champion)} - {None}, key=str):
            with suppress(InvalidInputError):  # it has been deleted, or is damaged
                version = registry.version(name, number or 0)
                source = version.data_window.get("source")
                if version.reference is not None or not isinstance(source, str) or is_sql(source):
                    continue
                path = storage_path(source)
                assert isinstance(path, UPath)  # an ObjectStoragePath is one, which type checkers do not see
                if reference_name(path.name) is not None:
                    yield version, path


def _source_folder(version: ModelVersion) -> str:
    return f"{version.name}/sources/{version.version:06}"


def _copy_file(file: UPath, folder: UPath) -> None:
    """Copy a file into a folder, under its own name. A copy that exists is complete and stays."""
    from paceline.registry import storage

    if (folder / file.name).exists():
        return
    temporary = f"{file.name}.part"
    storage.remove(folder, temporary)
    storage.copy(file.parent, file.name, folder, temporary)
    (folder / temporary).rename(folder / file.name)


def _describe(version: ModelVersion) -> str:
    return f"version {version.version} of {version.name}"
