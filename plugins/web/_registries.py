"""Reads model registries, for ``champions`` and ``model``, without making a request wait for a registry.

Tasks' results name the registries, and every author of a DAG can write such a result. So the API server opens only
what is safe whatever the name is: of a local folder the manifests and the records of promotions, whose size is bounded;
of an MLflow server its answers, through a connection of the type ``mlflow``. It opens no URL that the administrator has
not listed.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Generic, TypeVar

from airflow.sdk import BaseHook
from pydantic import BaseModel, ConfigDict
from upath import UPath

from paceline.airflow.mlflow_hook import MlflowHook
from paceline.airflow.places import storage_path
from paceline.errors import InvalidInputError, PacelineError
from paceline.registry import FileRegistry, Promotion, Registry, VersionSummary, storage
from paceline.registry.manifest import check_name

from .airflow_internals import conf

MLFLOW = "mlflow://"
_PATIENCE_S = 5.0
_FRESH_S = 10.0
_KEPT_S = 300.0
_HUNG_S = 30.0
_MAX_THREADS, _MAX_HUNG = 8, 64
_LONGEST_REASON = 2000  # characters
_MOST_VERSIONS = 50
_MOST_PROMOTIONS = 20
_CONN_ID = re.compile(r"\w(?:[.-]?\w)*", re.ASCII)  # no path, for backends that keep secrets in folders
log = logging.getLogger(__name__)

Place = tuple[str, str]
"""The location of a registry, as a task names it, and the name of a model."""


class ChampionReading(BaseModel):
    """What a registry said about the champion of a model at ``read_at``, or the ``problem`` with reading it.

    ``promoted_at``, ``reason`` and ``held`` are those of the champion's promotion. ``promoted_at`` is ``None`` if the
    registry has no promotion of the champion, because a person has set MLflow's alias.
    """

    model_config = ConfigDict(json_schema_serialization_defaults_required=True)

    registry: str
    model: str
    read_at: datetime
    champion: int | None = None
    promoted_at: datetime | None = None
    reason: str = ""
    held: bool = False
    problem: str | None = None


class ModelReading(ChampionReading):
    """Also the newest promotions of the model, oldest first, and its newest versions and those champions, newest first.

    ``url`` is the page of the model on the MLflow server. ``older`` is whether there are older versions.
    """

    versions: list[VersionSummary] = []
    promotions: list[Promotion] = []
    older: bool = False
    url: str | None = None


class UnreadableError(Exception):
    """Raised for a registry that cannot be read. The message is for users, and has nothing of the registry in it."""


Reading = TypeVar("Reading", bound=ChampionReading)


def read_champions(location: str, models: Collection[str]) -> Iterator[ChampionReading]:
    """Read the champions of some models from one registry. Nothing is raised: a reading may have a ``problem``."""
    return _read_all(location, models, _read_champion, ChampionReading)


def read_models(location: str, models: Collection[str]) -> Iterator[ModelReading]:
    """Read champion, versions and promotions of some models from one registry, as :func:`read_champions` does."""
    return _read_all(location, models, _read_model, ModelReading)


def _read_all(
    location: str, models: Collection[str], read: Callable[[Registry, str, str], Reading], kind: type[Reading]
) -> Iterator[Reading]:
    problem: str | None = None
    registry: Registry | None = None
    for model in models:
        if problem is None:
            try:
                registry = registry or open_safely(location)
                check_has(registry, model)
                yield read(registry, location, model)
                continue
            except UnreadableError as error:
                found = str(error)
            except PacelineError as error:
                found = "The record of the champion is damaged, or its version is missing: see `paceline model list`."
                if location.startswith(MLFLOW) and not isinstance(error, InvalidInputError):
                    found = problem = "The MLflow server does not respond, or refuses the request."
                log.warning("Champion of %s in %s not read: %s", model, location, error)
            except Exception as error:
                found = f"The registry cannot be read ({type(error).__name__})."
                log.warning("Champion of %s in %s not read", model, location, exc_info=True)
            if registry is None:
                problem = found
        yield _failed(kind, (location, model), problem or found)


def _failed(kind: type[Reading], place: Place, problem: str) -> Reading:
    return kind(registry=place[0], model=place[1], read_at=datetime.now(timezone.utc), problem=problem)


def open_safely(location: str) -> Registry:
    """Open the registry at a location that a task names; raise UnreadableError for one that must not be opened."""
    if location.startswith(MLFLOW):
        conn_id = location.removeprefix(MLFLOW)
        try:
            if not _CONN_ID.fullmatch(conn_id):
                raise ValueError(conn_id)
            conn_type = BaseHook.get_connection(conn_id).conn_type
        except Exception:  # the errors of all backends of secrets
            text = "The API server has no connection with the registry's name."
            if conf.getboolean("core", "multi_team", fallback=False):
                text = f"{text} It does not use connections of teams."
            raise UnreadableError(text) from None
        if conn_type != MlflowHook.conn_type:  # its password must not be sent to another kind of server
            raise UnreadableError(f"The type of its connection is not {MlflowHook.conn_type!r}.")
        return MlflowHook(conn_id).get_conn(patience_s=_PATIENCE_S, open_path=_refuse)
    path = location.removeprefix("file://")
    if os.path.isabs(path) and "::" not in path and "://" not in path:
        return FileRegistry(UPath(path))
    if not _is_listed(location):
        listed = "`[paceline] read_object_stores`"
        raise UnreadableError(f"The API server does not open object stores that {listed} does not list.")
    try:
        return FileRegistry(storage_path(location))
    except InvalidInputError:
        raise UnreadableError("The API server lacks the Airflow provider for this object store.") from None


def _is_listed(location: str) -> bool:
    """Return whether the administrator allows the API server to open an object store, or a folder of it."""
    if "::" in location or ".." in location.split("/"):
        return False
    listed = conf.get("paceline", "read_object_stores", fallback="").split(",")
    places = [f"{place.strip().rstrip('/')}/" for place in listed if "://" in place]
    return any(f"{location}/".startswith(place) for place in places)


def _refuse(uri: str) -> Any:
    raise ValueError("the API server does not open it")


def check_has(registry: Registry, model: str) -> None:
    """Raise an error for a bad name, and for a folder of another machine."""
    check_name(model)
    local = storage.local(registry.root) if isinstance(registry, FileRegistry) else None
    if local is not None and not Path(local, model).is_dir():
        raise UnreadableError("The API server's machine has no folder of this registry with the model.")


def _read_model(registry: Registry, location: str, model: str) -> ModelReading:
    reading = _read_champion(registry, location, model)
    newest = registry.summaries(model, _MOST_VERSIONS + 1)
    promotions = registry.history(model, newest=_MOST_PROMOTIONS)
    versions = {one.version: one for one in newest[:_MOST_VERSIONS]}
    champions = {reading.champion, *(number for one in promotions for number in (one.version, one.previous))}
    for number in champions - versions.keys():
        if number is not None and (found := registry.summary(model, number)) is not None:
            versions[number] = found
    url = None
    if location.startswith(MLFLOW) and (ui := MlflowHook(location.removeprefix(MLFLOW)).get_ui_url()) is not None:
        url = f"{ui}/#/models/{model}"
    return ModelReading(
        **reading.model_dump(),
        versions=sorted(versions.values(), key=lambda one: one.version, reverse=True),
        promotions=promotions,
        older=len(newest) > _MOST_VERSIONS,
        url=url,
    )


def _read_champion(registry: Registry, location: str, model: str) -> ChampionReading:
    last, number = registry.last_promotion(model), registry.champion_number(model)
    if last and last.version != number:  # promoted since the first of the two calls, or another alias in MLflow
        last = registry.last_promotion(model)
    reading = ChampionReading(registry=location, model=model, read_at=datetime.now(timezone.utc), champion=number)
    if last is None or last.version != number:
        return reading
    at = last.promoted_at
    at = at if at.tzinfo else at.replace(tzinfo=timezone.utc)  # a record that a person has edited
    return reading.model_copy(update={"promoted_at": at, "reason": last.reason[:_LONGEST_REASON], "held": last.hold})


@dataclass(frozen=True, eq=False)
class _Run:
    """A thread that reads a registry."""

    location: str
    began_s: float


class RegistryReader(Generic[Reading]):
    """Reads registries in threads, at most one for each registry, and keeps the readings for some seconds.

    At most eight threads read at once. A thread that has read for 30 s presumably waits for a file server that is away,
    and does not count; with 64 of them, no further registries are read.

    Parameters
    ----------
    read:
        Reads some models from the registry at a location.
    kind:
        The type of the readings.
    wait_s:
        Seconds that :meth:`readings` waits for the registries. A later call returns what was read after them.
    fresh_s:
        Seconds after which a reading is repeated. A reading of up to five minutes is returned in the meantime.
    clock:
        Returns the time in seconds.
    """

    def __init__(
        self,
        read: Callable[[str, Collection[str]], Iterable[Reading]],
        kind: type[Reading],
        *,
        wait_s: float = 2.0,
        fresh_s: float = _FRESH_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read, self._kind, self._wait_s, self._fresh_s, self._clock = read, kind, wait_s, fresh_s, clock
        self._known: dict[Place, tuple[float, Reading]] = {}
        self._running: dict[str, _Run] = {}
        self._changed = threading.Condition()

    def forget(self, place: Place) -> None:
        """Read this place again at the next call, because it has changed."""
        with self._changed:
            self._known.pop(place, None)
            self._running.pop(place[0], None)  # it may have read the place before the change

    def readings(self, places: Iterable[Place]) -> list[Reading]:
        """Return a reading for each place, in ``wait_s`` seconds at most.

        A call waits for the threads that it starts and for places without a known reading, and for no thread that is
        older than ``wait_s``. So a registry that does not answer occupies few requests.
        """
        places, now = list(places), self._clock()
        with self._changed:
            self._known = {place: known for place, known in self._known.items() if now - known[0] < _KEPT_S}
            stale: dict[str, list[str]] = {}
            for location, model in places:
                if (location, model) not in self._known or now - self._known[location, model][0] > self._fresh_s:
                    stale.setdefault(location, []).append(model)
            started = {location for location, models in stale.items() if self._start(location, models, now)}
            unknown = {place[0] for place in places if place not in self._known}
            awaited = [run for location in started | unknown if (run := self._running.get(location)) is not None]
            ends = {run: run.began_s + self._wait_s for run in awaited if run.began_s + self._wait_s > now}
            self._changed.wait_for(
                lambda: not any(self._running.get(run.location) is run for run in ends),
                max(ends.values(), default=now) - now,
            )
            return [
                self._known[place][1]
                if place in self._known
                else _failed(self._kind, place, "The registry has not answered yet.")
                for place in places
            ]

    def _start(self, location: str, models: Collection[str], now: float) -> bool:
        """Start a thread that reads a registry, unless one does, or too many read others."""
        hung = sum(now - run.began_s > _HUNG_S for run in self._running.values())
        if location in self._running or len(self._running) - hung >= _MAX_THREADS or hung >= _MAX_HUNG:
            return False
        self._running[location] = run = _Run(location, now)
        # A daemon: a folder on a file server that is away must not keep the API server from ending.
        threading.Thread(target=self._run, args=(run, models), daemon=True).start()
        return True

    def _run(self, run: _Run, models: Collection[str]) -> None:
        try:
            for reading in self._read(run.location, models):
                with self._changed:
                    if self._running.get(run.location) is not run:
                        return
                    self._known[run.location, reading.model] = (self._clock(), reading)
        finally:
            with self._changed:
                if self._running.get(run.location) is run:
                    del self._running[run.location]
                self._changed.notify_all()
