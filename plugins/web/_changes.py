"""Changes the champion of a model in its registry, for ``model``, without making a request wait for ever."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, wait
from typing import NamedTuple, TypeVar

from fastapi import HTTPException

from paceline.errors import InvalidInputError, PacelineError
from paceline.registry import Promotion, Registry, VersionSummary

from ._registries import MLFLOW, Place, UnreadableError, check_has, open_safely

_WAIT_S = 20.0
_ELSEWHERE = "run `paceline model promote` where the tasks run"
_busy: set[Place] = set()
_lock = threading.Lock()
log = logging.getLogger(__name__)
_Result = TypeVar("_Result")


class NewChampion(NamedTuple):
    """A change of the champion of a model, of which the user has ``seen`` the champion before."""

    place: Place
    version: int
    seen: int | None
    reason: str
    hold: bool


def promote(change: NewChampion) -> Promotion:
    """Make a version the champion, in a thread. Raise HTTPException, also if the registry has not answered in 20 s."""
    with _lock:
        if change.place in _busy:
            raise HTTPException(409, "Another change of this model's champion has not ended yet")
        _busy.add(change.place)

    def end() -> None:
        with _lock:
            _busy.discard(change.place)

    late = ": the champion may still change; look at the page again"
    return _call(change.place, lambda registry: _promote(registry, change), late, end)


def read_origins(place: Place, versions: Collection[VersionSummary]) -> set[str | None]:
    """Return the DAGs that have registered some versions; ``None`` among them if one is unknown.

    The summaries of an MLflow server lack them, so this reads the manifests. Raise the errors of :func:`promote`.
    """
    if place[0].startswith(MLFLOW):
        return _call(place, lambda registry: {_read_origin(registry, place[1], one.version) for one in versions}, "")
    return {_origin(one.lineage) for one in versions}


def _read_origin(registry: Registry, model: str, version: int) -> str | None:
    try:
        return _origin(registry.version(model, version).lineage)
    except InvalidInputError:  # damaged, or on a store that the API server does not open
        return None


def _origin(lineage: Mapping[str, object]) -> str | None:
    dag_id = lineage.get("dag_id")
    return dag_id if isinstance(dag_id, str) else None


def _call(
    place: Place, act: Callable[[Registry], _Result], late: str, end: Callable[[], None] = lambda: None
) -> _Result:
    """Call a function with a model's registry, and then ``end``, in a thread.

    ``late`` ends the error if the registry has not answered in time.
    """
    outcome: Future[_Result] = Future()

    def run() -> None:
        try:
            try:
                registry = open_safely(place[0])
                check_has(registry, place[1])
                result = act(registry)
            finally:
                end()
        except BaseException as error:
            outcome.set_exception(error)
        else:
            outcome.set_result(result)

    # A daemon: a folder on a file server that is away must not keep the API server from ending.
    threading.Thread(target=run, daemon=True).start()
    if not wait([outcome], _WAIT_S).done:
        raise HTTPException(504, f"The registry has not answered in {_WAIT_S:g} s{late}")
    try:
        return outcome.result()
    except UnreadableError as error:
        raise HTTPException(409, str(error)) from None
    except OSError as error:
        text = f"The API server cannot write to the registry ({type(error).__name__}): {_ELSEWHERE}"
        raise HTTPException(409, text) from None
    except PacelineError as error:  # its text may have content of a file
        log.warning("Champion of %s in %s not changed: %s", *reversed(place), error)
        raise HTTPException(409, f"The registry has refused the change: {_ELSEWHERE}, which says why") from None


def _promote(registry: Registry, change: NewChampion) -> Promotion:
    model = change.place[1]
    champion, last = registry.champion_number(model), registry.last_promotion(model)
    if champion != change.seen:
        raise HTTPException(409, f"The champion has changed: it is now {_name(champion)}")
    if last is not None and champion == change.version == last.version and last.hold == change.hold:
        raise HTTPException(409, f"Version {change.version} is the champion already")
    return registry.promote(model, change.version, change.reason, hold=change.hold)


def _name(champion: int | None) -> str:
    return "none" if champion is None else f"version {champion}"
