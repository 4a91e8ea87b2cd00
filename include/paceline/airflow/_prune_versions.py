"""What ``paceline prune`` finds in a model registry: versions, and why each is kept or may be removed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from functools import partial

from upath import UPath

from paceline.airflow._prune_files import plain_path
from paceline.airflow._prune_items import Item, KeptError
from paceline.airflow._prune_runs import Runs
from paceline.errors import InvalidInputError
from paceline.registry import FileRegistry, ModelVersion, Promotion, Registry
from paceline.registry.base import champion_before, check_deletable
from paceline.registry.interrupted import InterruptedRegistration, discard, find_interrupted

_LONGEST_COPY = timedelta(days=1)  # of one file: a registration that has written nothing for longer has been killed


class Versions:
    """The versions of all models in a registry.

    Parameters
    ----------
    registry, location:
        The registry, and how the user names it.
    runs:
        The runs that have not ended.
    before:
        Versions that were registered or replaced as champion later are kept, and younger files of registrations that
        were interrupted.
    keep_last:
        Number of the newest versions of each model that are kept.

    Attributes
    ----------
    windows:
        The plain paths of the training data that the versions need, after all items have been read; ``None`` if a
        version cannot be read. Those of versions that may be removed count, too: they may yet be kept.
    """

    def __init__(self, registry: Registry, location: str, runs: Runs, before: datetime, keep_last: int) -> None:
        self._registry, self._location, self._runs = registry, location, runs
        self._before, self._keep_last = before, keep_last
        self.windows: set[str] | None = set()

    def find(self) -> Iterator[Item]:
        """Yield the versions, model by model. Raise InvalidInputError if there is none: a disk may not be mounted."""
        names = self._registry.models()
        if not names:
            raise InvalidInputError("--registry", self._location, "a registry with a model")
        for name in names:
            yield from self._find(name)

    def _find(self, name: str) -> Iterator[Item]:
        numbers, history = self._registry.numbers(name), self._registry.history(name)
        problem = champion = None
        try:
            champion = self._registry.champion_number(name)
        except InvalidInputError as error:
            problem = f"the model has no usable champion ({error})"
        unfinished = self._registry.unfinished(name, known=frozenset(numbers))
        if isinstance(self._registry, FileRegistry):
            for registration in find_interrupted(self._registry.root, name, {*numbers, *unfinished}):
                yield self._interrupted_item(self._registry.root, registration)
        for number in unfinished:
            with suppress(InvalidInputError):  # its manifest has been removed already
                self._add_window(self._registry.version(name, number))
            interrupted = partial(self._remove, name, number, history)
            yield Item("version", self._name(name, number), _now(), 0, "its removal was interrupted", interrupted)
        for number in numbers:
            try:
                version = self._registry.version(name, number)
            except InvalidInputError as error:
                self.windows = None
                yield Item("version", self._name(name, number), _now(), 0, f"cannot be read: {error}")
                continue
            size = sum(file.size_bytes for file in version.files.values())
            size += version.reference.size_bytes if version.reference else 0
            keep = problem or self._keep(version, champion, history, number in numbers[-self._keep_last :])
            self._add_window(version)
            removal = None if keep else partial(self._remove, name, number, history)
            reason = keep or "neither the champion nor the one before"
            yield Item("version", self._name(name, number), _used_at(version, history), size, reason, removal)

    def _interrupted_item(self, root: UPath, interrupted: InterruptedRegistration) -> Item:
        is_young = interrupted.written_at >= min(self._before, _now() - _LONGEST_COPY)
        return Item(
            "version",
            self._name(interrupted.name, interrupted.version),
            interrupted.written_at,
            interrupted.size_bytes,
            "not old enough" if is_young else "its registration was interrupted",
            None if is_young else partial(discard, root, interrupted),
        )

    def _add_window(self, version: ModelVersion) -> None:
        source = version.data_window.get("source")
        if version.reference is None and isinstance(source, str) and self.windows is not None:
            self.windows.add(plain_path(source))

    def _keep(
        self, version: ModelVersion, champion: int | None, history: list[Promotion], is_newest: bool
    ) -> str | None:
        """Return why a version is kept; ``None`` if it may go."""
        if champion is None or not history:
            return "the model has no champion"
        if version.version == champion:
            return "the champion"
        if version.version == champion_before(history, champion):
            return "the champion before, for a rollback"
        try:
            check_deletable(version.name, version.version, champion, history)
        except InvalidInputError:
            return "the champion before the last promotion"
        if is_newest:
            return f"one of the newest {self._keep_last}"
        if version.digest is None:
            return "registered by another tool"
        if _used_at(version, history) >= self._before:
            return "not old enough"
        return self._need(version)

    def _need(self, version: ModelVersion, *, again: bool = False) -> str | None:
        """Return why a run needs a version; ``None`` if none does."""
        run = [version.lineage.get(key) for key in ("dag_id", "run_id")]
        if all(isinstance(one, str) for one in run) and self._runs.is_active(*map(str, run), again=again):
            return "its run has not ended"
        is_given = self._runs.is_given_version(version.name, version.version, again=again)
        return "a run that has not ended has been given it" if is_given else None

    def _remove(self, name: str, number: int, history: list[Promotion]) -> None:
        def check() -> None:
            with suppress(InvalidInputError):  # another process has deleted it
                if (reason := self._need(self._registry.version(name, number), again=True)) is not None:
                    raise KeptError(reason)

        self._registry.delete(name, number, check=check, known=history)

    def _name(self, name: str, number: int) -> str:
        return f"{self._location} {name} {number}"


def _now() -> datetime:
    return datetime.now(timezone.utc)


def _used_at(version: ModelVersion, history: list[Promotion]) -> datetime:
    """Return when a version was registered, or replaced as the champion if that was later."""
    replaced = (one.promoted_at for one in history if one.previous == version.version)
    return max(moment.astimezone(timezone.utc) for moment in (version.created_at, *replaced))
