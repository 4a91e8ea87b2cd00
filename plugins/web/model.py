"""Routes that return the versions of one model, and with which a user changes the model's champion."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException
from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from sqlalchemy import and_
from sqlalchemy.orm import Session

from paceline.contract import EVALUATION_XCOM, PROMOTION_XCOM, EvaluationResult, PromotionResult
from paceline.registry import VersionSummary

from ._changes import NewChampion, promote, read_origins
from ._registries import MLFLOW, ChampionReading, ModelReading, Place, RegistryReader, read_models
from .access import ReadableDags, can_change, can_read_results
from .airflow_internals import GetUserDep, SessionDep, action_logging, conf
from .champions import check_same, forget_champion
from .overview import TaskResult, Value, select_marked

router = APIRouter(tags=["Models"])
_LIMIT = 100  # evaluations, and decisions
_LONGEST_TEXT = 4000  # characters
_ORIGIN = ("dag_id", "run_id", "task_id", "map_index", "data_until", "evaluation")
_NOT_ALLOWED = (
    "To change the champion, you need permission to edit the task instances of every DAG that evaluates or promotes "
    "this model."
)
_NOT_ALLOWED_IF_UNKNOWN = (
    "The registry does not say which DAG has registered this version or the champion. To change the champion, you need "
    "permission to edit the task instances of every DAG that evaluates or promotes a model with this name."
)
_reader = RegistryReader(read_models, ModelReading)


class ShownVersion(BaseModel):
    """A version in its registry. What only the manifest has is missing for versions in MLflow."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    version: int
    created_at: datetime | None
    """``null`` if the version's manifest is damaged, so that it cannot be promoted."""
    signed: bool
    metrics: dict[str, float]
    """The scores at registration."""
    dag_id: str | None
    """The DAG and the run that have registered it; ``null`` if unknown, or if the caller may not read the DAG."""
    run_id: str | None
    data_until: str | None
    """The time up to which the run covers the data."""
    window: str | None
    """The training data, as JSON."""
    lineage: str | None
    """What else the DAG's author has stored about the origin, as JSON."""
    url: str | None
    """The page of the version on the MLflow server."""


class ShownPromotion(BaseModel):
    """A change of the champion. ``hold``: no task replaces it until it is released."""

    version: int
    previous: int | None
    promoted_at: datetime
    reason: str
    hold: bool


class ModelView(BaseModel):
    """One model: its newest versions, promotions, evaluations and decisions, newest first."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    reading: ChampionReading
    versions: list[ShownVersion]
    older: bool
    """Whether the registry has older versions."""
    promotions: list[ShownPromotion]
    evaluations: list[TaskResult[EvaluationResult]]
    decisions: list[TaskResult[PromotionResult]]
    refusal: str | None
    """Why the caller cannot change the champion here; ``null`` if they can."""


class ChampionChange(BaseModel):
    """A new champion, or the same with another ``hold``.

    ``seen`` is the champion that the user has read, ``null`` for none. ``reason`` is stored with the user's name.
    """

    registry: str
    model: str
    version: int = Field(ge=1)
    seen: Annotated[int, Field(ge=1)] | None
    reason: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=1000)]
    hold: bool = False


@router.get(
    "/model",
    dependencies=[can_read_results],
    responses={404: {"description": "No result of a DAG that the caller may read names this model"}},
)
def model_view(session: SessionDep, readable: ReadableDags, user: GetUserDep, registry: str, model: str) -> ModelView:
    """Return the versions of a model that the results of readable DAGs name, in about two seconds at most."""
    place = (registry, model)
    evaluations = _results(session, readable, place, EVALUATION_XCOM, EvaluationResult)
    decisions = _results(session, readable, place, PROMOTION_XCOM, PromotionResult)
    dags = _dags_of(session, model)
    reading = _read(session, place, evaluations, decisions)
    return ModelView(
        reading=ChampionReading.model_validate(reading, from_attributes=True),
        versions=[_show(version, reading.url, readable) for version in reading.versions],
        older=reading.older,
        promotions=[ShownPromotion.model_validate(one, from_attributes=True) for one in reversed(reading.promotions)],
        evaluations=evaluations,
        decisions=decisions,
        refusal=_refusal(reading, user, _in_registry(dags, registry)),
    )


@router.put(
    "/model/champion",
    dependencies=[can_read_results, Depends(action_logging("paceline.champion"))],
    responses={
        403: {"description": "The caller may not edit the tasks of a DAG that evaluates or promotes the model"},
        404: {"description": "No result of a DAG that the caller may read names this model"},
        409: {"description": "The champion has changed since the user read it, or the registry cannot be changed"},
        422: {"description": "There is no such version"},
        504: {"description": "The registry has not answered"},
    },
)
def change_champion(
    session: SessionDep, readable: ReadableDags, user: GetUserDep, change: ChampionChange
) -> ShownPromotion:
    """Make a version the champion, if the user may edit the tasks of all DAGs of the model. Store the user's name.

    Another name of the registry may stand for the same folder or server. So the user also needs the right for the DAGs
    that have registered the version and the champion before; if one is unknown, for the DAGs of all models with this
    name.
    """
    place = (change.registry, change.model)
    evaluations = _results(session, readable, place, EVALUATION_XCOM, EvaluationResult)
    decisions = _results(session, readable, place, PROMOTION_XCOM, PromotionResult)
    dags = _dags_of(session, change.model)
    reading = _read(session, place, evaluations, decisions)
    if (refusal := _refusal(reading, user, _in_registry(dags, change.registry))) is not None:
        raise HTTPException(409 if reading.problem else 403, refusal)
    listed = {one.version: one for one in reading.versions}
    version = listed.get(change.version)
    if version is None or version.created_at is None:
        raise HTTPException(422, f"version: got {change.version}, expected an undamaged version on the model's page")
    replaced = [] if change.seen is None else [listed.get(change.seen, VersionSummary(version=change.seen))]
    origins = read_origins(place, [version, *replaced])
    if not _may_change(user, [dag_id for dag_id in origins if dag_id is not None]):
        raise HTTPException(403, _NOT_ALLOWED)
    if None in origins and not _may_change(user, {dag_id for dag_id, _ in dags}):
        raise HTTPException(403, _NOT_ALLOWED_IF_UNKNOWN)
    reason = f"{change.reason} ({user.get_name()})"
    promotion = promote(NewChampion(place, change.version, change.seen, reason, change.hold))
    _reader.forget(place)
    forget_champion(place)
    return ShownPromotion.model_validate(promotion, from_attributes=True)


def _results(
    session: Session, readable: Collection[str], place: Place, mark: str, kind: type[Value]
) -> list[TaskResult[Value]]:
    query, marked, result = select_marked(readable, mark)
    is_of_model = _is_of(result.value, place)
    return [
        TaskResult(
            dag_id=row.dag_id,
            run_id=row.run_id,
            task_id=row.task_id,
            map_index=row.map_index,
            at=row.timestamp,
            value=value,
        )
        for row in session.execute(query.where(is_of_model).order_by(marked.timestamp.desc()).limit(_LIMIT))
        if (value := kind.read(row.value)) is not None
    ]


def _dags_of(session: Session, model: str) -> set[tuple[str, str | None]]:
    """Return the DAGs that evaluate or promote a model, also those that the caller may not read, with its registry."""
    dags: set[tuple[str, str | None]] = set()
    for mark in (EVALUATION_XCOM, PROMOTION_XCOM):
        query, marked, result = select_marked(None, mark)
        registry = result.value["registry"].as_string()
        found = query.where(result.value["model"].as_string() == model).with_only_columns(marked.dag_id, registry)
        dags.update((row[0], row[1]) for row in session.execute(found.distinct()))
    return dags


def _in_registry(dags: Collection[tuple[str, str | None]], location: str) -> set[str]:
    """Return the DAGs that name a registry."""
    return {dag_id for dag_id, name in dags if name is not None and _same_case(name) == _same_case(location)}


def _same_case(location: str) -> str:
    """Return one name for all ids of a connection that Airflow's environment variables do not distinguish."""
    return location.upper() if location.startswith(MLFLOW) else location


def _is_of(value: Any, place: Place) -> Any:
    registry, model = place
    return and_(value["model"].as_string() == model, value["registry"].as_string() == registry)


def _read(
    session: Session,
    place: Place,
    evaluations: Collection[TaskResult[EvaluationResult]],
    decisions: list[TaskResult[PromotionResult]],
) -> ModelReading:
    if not (evaluations or decisions):
        text = f"No evaluation of a DAG that you may read names the model {place[1]} and the registry {place[0]}"
        raise HTTPException(404, text)
    session.commit()  # gives the database's connection to other requests while this one waits
    if not conf.getboolean("paceline", "read_registries", fallback=True):
        problem = "The API server reads no registries: [paceline] read_registries is False."
        return ModelReading(registry=place[0], model=place[1], read_at=datetime.now().astimezone(), problem=problem)
    (reading,) = _reader.readings([place])
    at, champion = (decisions[0].at, decisions[0].value.champion_version) if decisions else (None, None)
    return check_same(reading, at, champion)


def _refusal(reading: ModelReading, user: GetUserDep, dags: Collection[str]) -> str | None:
    if not _may_change(user, dags):
        return _NOT_ALLOWED
    if reading.problem is not None:
        return f"The champion cannot be changed here. {reading.problem}"
    if any(version.signed for version in reading.versions):
        return "Versions of this model are signed, and the API server has no key: use `paceline model promote`."
    return None


def _may_change(user: GetUserDep, dags: Collection[str]) -> bool:
    return all(can_change(user, dag_id) for dag_id in sorted(dags))


def _show(version: VersionSummary, url: str | None, readable: Collection[str]) -> ShownVersion:
    lineage = version.lineage
    dag_id, run_id = lineage.get("dag_id"), lineage.get("run_id")
    known = isinstance(dag_id, str) and dag_id in readable
    until = lineage.get("data_until")
    return ShownVersion(
        version=version.version,
        created_at=version.created_at,
        signed=version.signed,
        metrics=dict(version.metrics) if known or dag_id is None else {},
        dag_id=str(dag_id) if known else None,
        run_id=run_id if known and isinstance(run_id, str) else None,
        data_until=until if known and isinstance(until, str) else None,
        window=_text(version.data_window) if known else None,
        lineage=_text({key: value for key, value in lineage.items() if key not in _ORIGIN}) if known else None,
        url=f"{url}/versions/{version.version}" if url else None,
    )


def _text(content: Mapping[str, Any]) -> str | None:
    text = json.dumps(dict(content), ensure_ascii=False, indent=1)
    return (text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]} …") if content else None
