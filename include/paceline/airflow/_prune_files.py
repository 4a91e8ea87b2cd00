"""What ``paceline prune`` finds in folders: drift reports, outputs of trainings and copies of checkpoints.

Paceline's files are known by their content: a report by its ``report.json``, the others by the record beside their
folder. All other files stay, also those in the same folder.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from upath import UPath

from paceline.airflow._prune_items import Item, KeptError
from paceline.airflow._prune_runs import Runs
from paceline.airflow.stored_files import COPY_NAME, RECORD_SUFFIX
from paceline.contract import DriftReport, StoredFiles
from paceline.errors import InvalidInputError
from paceline.registry import storage

_REPORT, _PAGE, WINDOW = "report.json", "report.html", "window.parquet"
_ACTIVE, _GIVEN = "its run has not ended", "a run that has not ended has been given its path"
_VERSION = re.compile(r"(^|/)versions/\d{6}/")  # of a registry, which may contain copies of such files


@dataclass(frozen=True)
class Rules:
    """The rules by which folders are pruned.

    Parameters
    ----------
    runs:
        The runs that have not ended.
    before:
        Newer files are kept.
    windows:
        The plain paths of the training data that versions need; ``None`` if they are not known.
    """

    runs: Runs
    before: datetime
    windows: Collection[str] | None

    def keep_young(self, written_at: datetime) -> str | None:
        """Return the reason to keep what is not old enough."""
        return None if written_at < self.before else "not old enough"

    def has_window(self, folder: str) -> bool:
        """Return whether a version needs a file in a folder. ``folder`` is the end of its path, as in ``is_given``."""
        return any(f"/{folder}/" in path for path in self.windows or ())


def find_files(root: UPath, rules: Rules) -> Iterator[Item]:
    """Yield the reports, outputs and checkpoints below ``root``."""
    found = storage.sizes_below(root).items()
    sizes = {path: size for path, size in found if not _VERSION.search(f"{root.path}/{path}")}
    records = {path: stored for path in sizes if (stored := _read_record(root, path)) is not None}
    folders = tuple(f"{path.removesuffix(RECORD_SUFFIX)}/" for path in records)
    newest: dict[tuple[object, ...], datetime] = {}
    written = {}
    for path, stored in records.items():
        at = written[path] = _written_at(root, path, stored, sizes)
        newest[_task(stored)] = max(at, newest.get(_task(stored), at))
    for path, stored in records.items():
        yield _stored_item(root, path, stored, sizes, written[path], rules, written[path] == newest[_task(stored)])
    for path in sizes:
        if (
            (path == _REPORT or path.endswith(f"/{_REPORT}"))
            and not path.startswith(folders)
            and _is_report(root, path)
        ):
            yield _report_item(root, path.removesuffix(_REPORT), sizes, rules)


def plain_path(path: str) -> str:
    """Return a path or URL without the id of a connection, and a local path without links, to compare it with others.

    >>> plain_path("s3://aws_default@reports/drift/1"), plain_path("file:///reports/../1")
    ('s3://reports/drift/1', '/1')
    """
    scheme, separator, rest = path.partition("://")
    if not separator or scheme == "file":
        return os.path.realpath(rest if separator else path)
    host, _, below = rest.partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}/{below}"


def _stored_item(
    root: UPath,
    path: str,
    stored: StoredFiles,
    sizes: Mapping[str, int],
    written_at: datetime,
    rules: Rules,
    is_newest: bool,
) -> Item:
    folder = path.removesuffix(RECORD_SUFFIX)
    files = [*_stored_files(folder, stored, sizes), path]  # the record last, so that a killed removal can be repeated

    def need(*, again: bool = False) -> str | None:
        if rules.runs.is_active(stored.dag_id, stored.run_id, again=again):
            return _ACTIVE
        return _GIVEN if rules.runs.is_given(folder, again=again) else None

    keep = rules.keep_young(written_at)
    if keep is None and stored.kind == "output" and is_newest:
        keep = "the newest output of its task"
    if keep is None and rules.has_window(folder):
        keep = "a version needs its training data: the registry has no copy"
    keep = keep or need()
    size = sum(sizes[file] for file in files)
    written = partial(_written_at, root, path, stored, sizes)
    removal = None if keep else partial(_remove, root, files, partial(need, again=True), written, written_at)
    return Item(stored.kind, _shown(root / folder), written_at, size, keep or "its run has ended", removal)


def _report_item(root: UPath, folder: str, sizes: Mapping[str, int], rules: Rules) -> Item:
    files = [path for name in (WINDOW, _PAGE, _REPORT) if (path := f"{folder}{name}") in sizes]
    place = root / folder.rstrip("/") if folder else root
    name = folder.rstrip("/") or root.name
    written = partial(storage.modified_at, root, files[-1])
    written_at = written()

    def need(*, again: bool = False) -> str | None:
        if rules.runs.has_active_folder(place.path, again=again):
            return _ACTIVE
        return _GIVEN if rules.runs.is_given(name) else None

    keep = rules.keep_young(written_at) or need()
    if keep is None and f"{folder}{WINDOW}" in sizes:
        if rules.windows is None:
            keep = f"a model may need its {WINDOW}: name all registries with --registry"
        elif rules.has_window(name):
            keep = f"a version needs its {WINDOW}: the registry has no copy"
    size = sum(sizes[file] for file in files)
    removal = None if keep else partial(_remove, root, files, partial(need, again=True), written, written_at)
    return Item("report", _shown(place), written_at, size, keep or "its run has ended", removal)


def _remove(
    root: UPath,
    files: list[str],
    need: Callable[[], str | None],
    written: Callable[[], datetime],
    written_at: datetime,
) -> None:
    """Remove files, unless a run needs them now, or another process has written or removed them."""
    if (reason := need()) is not None:
        raise KeptError(reason)
    try:
        if written() != written_at:
            raise KeptError("its task has run again")
    except FileNotFoundError:
        raise KeptError("another process has removed it") from None
    for path in files:
        storage.remove(root, path)
    storage.remove_empty_folders(root, files)


def _shown(path: UPath) -> str:
    return str(path) if storage.local(path) is None else path.path


def _read_record(root: UPath, path: str) -> StoredFiles | None:
    if not path.endswith(RECORD_SUFFIX):
        return None
    try:
        return StoredFiles.read(json.loads(storage.read(root, path) or b""))
    except (ValueError, RecursionError, InvalidInputError):  # not Paceline's
        return None


def _is_report(root: UPath, path: str) -> bool:
    try:
        DriftReport.from_dict(json.loads(storage.read(root, path) or b""))
    except (ValueError, RecursionError, InvalidInputError):
        return False
    return True


def _stored_files(folder: str, stored: StoredFiles, sizes: Mapping[str, int]) -> list[str]:
    """Return the paths of the files that a record names."""
    below = f"{folder}/"
    inner = (path.removeprefix(below) for path in sizes if path.startswith(below))
    if stored.kind == "checkpoint":
        return [f"{below}{path}" for path in inner if COPY_NAME.fullmatch(path)]
    return [f"{below}{path}" for path in inner if path.partition("/")[0] in stored.names]


def _written_at(root: UPath, path: str, stored: StoredFiles, sizes: Mapping[str, int]) -> datetime:
    """Return when the files were written: an output before its record, the copies of a checkpoint after it."""
    folder = path.removesuffix(RECORD_SUFFIX)
    copies = _stored_files(folder, stored, sizes) if stored.kind == "checkpoint" else []
    return max(storage.modified_at(root, one) for one in (path, *copies))


def _task(stored: StoredFiles) -> tuple[object, ...]:
    return stored.kind, stored.dag_id, stored.task_id, stored.map_index
