"""Changes the champion of a model in its registry, for ``model``, without making a request wait for ever."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future, wait
from typing import NamedTuple

from fastapi import HTTPException

from paceline.errors import PacelineError
from paceline.registry import Promotion

from ._registries import Place, UnreadableError, check_has, open_safely

_WAIT_S = 20.0
_ELSEWHERE = "run `paceline model promote` where the tasks run"
_busy: set[Place] = set()
_lock = threading.Lock()
log = logging.getLogger(__name__)


class NewChampion(NamedTuple):
    """A change of the champion of a model, of which the user has ``seen`` the champion before."""

    place: Place
    version: int
    seen: int | None
    reason: str
    hold: bool


def promote(change: NewChampion) -> Promotion:
    """Make a version the champion, in a thread. Raise HTTPException, also if the registry has not answered in 20 s."""
    outcome: Future[Promotion] = Future()

    def run() -> None:
        promotion: Promotion | None = None
        error: BaseException | None = None
        try:
            promotion = _promote(change)
        except BaseException as raised:
            error = raised
        with _lock:
            _busy.discard(change.place)
        if promotion is None:
            outcome.set_exception(error)
        else:
            outcome.set_result(promotion)

    with _lock:
        if change.place in _busy:
            raise HTTPException(409, "Another change of this model's champion has not ended yet")
        _busy.add(change.place)
    # A daemon: a folder on a file server that is away must not keep the API server from ending.
    threading.Thread(target=run, daemon=True).start()
    if not wait([outcome], _WAIT_S).done:
        text = f"The registry has not answered in {_WAIT_S:g} s: the champion may still change; look at the page again"
        raise HTTPException(504, text)
    try:
        return outcome.result()
    except UnreadableError as error:
        raise HTTPException(409, str(error)) from None
    except OSError as error:
        text = f"The API server cannot write to the registry ({type(error).__name__}): {_ELSEWHERE}"
        raise HTTPException(409, text) from None
    except PacelineError as error:  # its text may have content of a file
        log.warning("Champion of %s in %s not changed: %s", *reversed(change.place), error)
        raise HTTPException(409, f"The registry has refused the change: {_ELSEWHERE}, which says why") from None


def _promote(change: NewChampion) -> Promotion:
    location, model = change.place
    registry = open_safely(location)
    check_has(registry, model)
    champion, last = registry.champion_number(model), registry.last_promotion(model)
    if champion != change.seen:
        raise HTTPException(409, f"The champion has changed: it is now {_name(champion)}")
    if last is not None and champion == change.version == last.version and last.hold == change.hold:
        raise HTTPException(409, f"Version {change.version} is the champion already")
    return registry.promote(model, change.version, change.reason, hold=change.hold)


def _name(champion: int | None) -> str:
    return "none" if champion is None else f"version {champion}"
