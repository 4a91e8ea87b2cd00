"""Route that returns the current champions of recently evaluated models, from their registries."""

from __future__ import annotations

from datetime import datetime, timedelta

from fastapi import APIRouter

from paceline.contract import EVALUATION_XCOM, PROMOTION_XCOM, EvaluationResult, PromotionResult

from ._registries import MLFLOW, ChampionReading, Place, Reading, RegistryReader, read_champions
from .access import ReadableDags, can_read_results
from .airflow_internals import SessionDep, conf
from .overview import select_results

router = APIRouter(tags=["Overview"])
_LIMIT = 100  # as many results as the page shows
_CLOCKS_DIFFER_BY = timedelta(minutes=5)
_reader = RegistryReader(read_champions, ChampionReading)


@router.get("/champions", dependencies=[can_read_results])
def champions(session: SessionDep, readable: ReadableDags) -> list[ChampionReading]:
    """Return the champion of each model that the results of readable DAGs name, in about two seconds at most."""
    if not conf.getboolean("paceline", "read_registries", fallback=True):
        return []
    places: dict[Place, None] = {}
    decided: dict[Place, tuple[datetime, int | None]] = {}
    for row in session.execute(select_results(readable, EVALUATION_XCOM, _LIMIT)):
        if (evaluation := EvaluationResult.read(row.value)) is not None and evaluation.registry is not None:
            places[evaluation.registry, evaluation.model] = None
    for row in session.execute(select_results(readable, PROMOTION_XCOM, _LIMIT)):
        if (promotion := PromotionResult.read(row.value)) is not None:
            decided.setdefault((promotion.registry, promotion.model), (row.timestamp, promotion.champion_version))
    session.commit()  # gives the database's connection to other requests while this one waits
    found = _reader.readings(places)
    return [check_same(one, *decided.get((one.registry, one.model), (None, None))) for one in found]


def forget_champion(place: Place) -> None:
    """Read the champion of a model again at the next request, because it has changed."""
    _reader.forget(place)


def check_same(reading: Reading, at: datetime | None, champion: int | None) -> Reading:
    """Return the reading, or a problem if the folder at this path lacks what a DAG has promoted in its own folder."""
    if reading.problem or reading.registry.startswith(MLFLOW) or at is None or reading.champion == champion:
        return reading
    if reading.promoted_at is not None and reading.promoted_at > at - _CLOCKS_DIFFER_BY:
        return reading
    problem = "The folder that the API server reads is not that of the tasks: it lacks their last promotion."
    return type(reading)(registry=reading.registry, model=reading.model, read_at=reading.read_at, problem=problem)
