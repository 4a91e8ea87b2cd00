"""Reads champions from model registries, for ``champions``, without making a request wait for a registry.

Tasks' results name the registries, and every author of a DAG can write such a result. So the API server opens only
what is safe whatever the name is: of a local folder the records of promotions, whose size is bounded; of an MLflow
server its answers, through a connection of the type ``mlflow``. It opens no URL that the administrator has not listed.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from datetime import datetime, timezone
from pathlib import Path

from airflow.sdk import BaseHook
from pydantic import BaseModel, ConfigDict
from upath import UPath

from paceline.airflow.mlflow_hook import MlflowHook
from paceline.airflow.places import storage_path
from paceline.errors import InvalidInputError, PacelineError
from paceline.registry import FileRegistry, Registry, storage
from paceline.registry.manifest import check_name

from .airflow_internals import conf

MLFLOW = "mlflow://"
_PATIENCE_S = 5.0
_FRESH_S = 10.0
_KEPT_S = 300.0
_MAX_THREADS = 8
_LONGEST_REASON = 2000  # characters
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


class _UnreadableError(Exception):
    """Raised for a registry that cannot be read. The message is for users, and has nothing of the registry in it."""


Read = Callable[[str, Collection[str]], Iterable[ChampionReading]]


def read_champions(location: str, models: Collection[str]) -> Iterator[ChampionReading]:
    """Read the champions of some models from one registry. Nothing is raised: a reading may have a ``problem``."""
    problem: str | None = None
    registry: Registry | None = None
    for model in models:
        if problem is None:
            try:
                registry = registry or _open(location)
                yield _read(registry, location, model)
                continue
            except _UnreadableError as error:
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
        yield _failed((location, model), problem or found)


def _failed(place: Place, problem: str) -> ChampionReading:
    return ChampionReading(registry=place[0], model=place[1], read_at=datetime.now(timezone.utc), problem=problem)


def _open(location: str) -> Registry:
    if location.startswith(MLFLOW):
        conn_id = location.removeprefix(MLFLOW)
        try:
            if not _CONN_ID.fullmatch(conn_id):
                raise ValueError(conn_id)
            conn_type = BaseHook.get_connection(conn_id).conn_type
        except Exception:  # the errors of all backends of secrets
            raise _UnreadableError("The API server has no connection with the registry's name.") from None
        if conn_type != MlflowHook.conn_type:  # its password must not be sent to another kind of server
            raise _UnreadableError(f"The type of its connection is not {MlflowHook.conn_type!r}.")
        return MlflowHook(conn_id).get_conn(patience_s=_PATIENCE_S)
    path = location.removeprefix("file://")
    if os.path.isabs(path) and "::" not in path and "://" not in path:
        return FileRegistry(UPath(path))
    if not _is_listed(location):
        raise _UnreadableError("The API server does not open object stores that `read_object_stores` does not list.")
    try:
        return FileRegistry(storage_path(location))
    except InvalidInputError:
        raise _UnreadableError("The API server lacks the Airflow provider for this object store.") from None


def _is_listed(location: str) -> bool:
    """Return whether the administrator allows the API server to open an object store, or a folder of it."""
    if "::" in location or ".." in location.split("/"):
        return False
    listed = conf.get("paceline", "read_object_stores", fallback="").split(",")
    places = [f"{place.strip().rstrip('/')}/" for place in listed if "://" in place]
    return any(f"{location}/".startswith(place) for place in places)


def _read(registry: Registry, location: str, model: str) -> ChampionReading:
    check_name(model)
    is_folder = isinstance(registry, FileRegistry) and storage.local(registry.root) is not None
    if is_folder and not Path(location.removeprefix("file://"), model).is_dir():
        raise _UnreadableError("The API server's machine has no folder of this registry with the model.")
    last, number = registry.last_promotion(model), registry.champion_number(model)
    if last and last.version != number:  # promoted since the first of the two calls, or another alias in MLflow
        last = registry.last_promotion(model)
    reading = ChampionReading(registry=location, model=model, read_at=datetime.now(timezone.utc), champion=number)
    if last is None or last.version != number:
        return reading
    at = last.promoted_at
    at = at if at.tzinfo else at.replace(tzinfo=timezone.utc)  # a record that a person has edited
    return reading.model_copy(update={"promoted_at": at, "reason": last.reason[:_LONGEST_REASON], "held": last.hold})


class RegistryReader:
    """Reads registries in threads, at most one for each registry, and keeps the readings for some seconds.

    Parameters
    ----------
    read:
        Reads the champions of some models from the registry at a location.
    wait_s:
        Seconds that :meth:`readings` waits for the registries. A later call returns what was read after them.
    fresh_s:
        Seconds after which a reading is repeated. A reading of up to five minutes is returned in the meantime.
    """

    def __init__(self, read: Read = read_champions, *, wait_s: float = 2.0, fresh_s: float = _FRESH_S) -> None:
        self._read, self._wait_s, self._fresh_s = read, wait_s, fresh_s
        self._known: dict[Place, tuple[float, ChampionReading]] = {}
        self._busy: set[str] = set()
        self._changed = threading.Condition()

    def readings(self, places: Iterable[Place]) -> list[ChampionReading]:
        """Return a reading for each place, in ``wait_s`` seconds at most."""
        places, now = list(places), time.monotonic()
        with self._changed:
            self._known = {place: known for place, known in self._known.items() if now - known[0] < _KEPT_S}
            stale: dict[str, list[str]] = {}
            for location, model in places:
                if (location, model) not in self._known or now - self._known[location, model][0] > self._fresh_s:
                    stale.setdefault(location, []).append(model)
            for location, models in stale.items():
                if location not in self._busy and len(self._busy) < _MAX_THREADS:
                    self._busy.add(location)
                    # A daemon: a folder on a file server that is away must not keep the API server from ending.
                    threading.Thread(target=self._run, args=(location, models), daemon=True).start()
            self._changed.wait_for(lambda: not stale.keys() & self._busy, self._wait_s)
            return [
                self._known[place][1] if place in self._known else _failed(place, "The registry has not answered yet.")
                for place in places
            ]

    def _run(self, location: str, models: Collection[str]) -> None:
        try:
            for reading in self._read(location, models):
                with self._changed:
                    self._known[location, reading.model] = (time.monotonic(), reading)
        finally:
            with self._changed:
                self._busy.discard(location)
                self._changed.notify_all()
