"""Sends the results of drift checks, evaluations and promotions, and the state of pools, to Airflow's metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, get_args

from paceline.contract import DriftSummary, DriftVerdict, EvaluationResult, PromotionResult


class TaskIds(Protocol):
    """The task of a result."""

    @property
    def dag_id(self) -> str:
        """Id of its DAG."""

    @property
    def task_id(self) -> str:
        """Id of the task."""


def send_check(task: TaskIds, summary: DriftSummary, map_index: int | None = None) -> None:
    """Send the result of a drift check, with its model if it names one.

    The instances of a mapped sensor, with a ``map_index`` of at least 0, have gauges of their own.
    """
    from airflow.sdk.observability import stats

    index = None if map_index is None or map_index < 0 else str(map_index)
    tags = _tags(task, map_index=index, model=summary.model)
    stats.incr("paceline.drift_checks", tags=tags | _tags(verdict=summary.verdict))
    for verdict in get_args(DriftVerdict):
        stats.gauge("paceline.drift_verdict", int(verdict == summary.verdict), tags=tags | _tags(verdict=verdict))
    stats.gauge("paceline.drift_features", summary.features, tags=tags)
    stats.gauge("paceline.drift_drifted_features", len(summary.drifted_features), tags=tags)
    if summary.estimated_error is not None:
        stats.gauge("paceline.drift_estimated_error", summary.estimated_error, tags=tags)
    if summary.retrain:
        stats.incr("paceline.drift_retrainings", tags=tags)


def send_evaluation(task: TaskIds, result: EvaluationResult) -> None:
    """Send the scores of an evaluation."""
    from airflow.sdk.observability import stats

    tags = _tags(task, model=result.model, metric=result.metric)
    for name in ("challenger", "champion", "improvement"):
        if (value := getattr(result, name)) is not None:
            stats.gauge(f"paceline.evaluation_{name}", value, tags=tags)


def send_promotion(task: TaskIds, result: PromotionResult) -> None:
    """Send the decision about a challenger, and the champion after it."""
    from airflow.sdk.observability import stats

    tags = _tags(task, model=result.model)
    stats.incr("paceline.promotion_decisions", tags=tags | _tags(verdict=result.verdict))
    if result.promoted:
        stats.incr("paceline.promotions", tags=tags)
    if result.champion_version is not None:
        stats.gauge("paceline.champion_version", result.champion_version, tags=tags)


def send_decision(pool: str, took_ms: float) -> None:
    """Send the duration of an arbiter's decision."""
    from airflow.sdk.observability import stats

    stats.incr("paceline.arbiter_decisions", tags=_tags(pool=pool))
    stats.timing("paceline.arbiter_decision", took_ms, tags=_tags(pool=pool))


def send_pool(pool: str, values: Mapping[str, float]) -> None:
    """Send the state of a pool: each of ``values`` is the gauge ``paceline.pool_NAME``."""
    from airflow.sdk.observability import stats

    for name, value in values.items():
        stats.gauge(f"paceline.pool_{name}", value, tags=_tags(pool=pool))


def _tags(task: TaskIds | None = None, **values: str | None) -> dict[str, str]:
    from airflow.sdk.observability import stats

    tags = {} if task is None else {"dag_id": task.dag_id, "task_id": task.task_id}
    # Airflow does not send a metric to StatsD if a tag has another character, such as a space.
    valid = {name: stats.normalize_name_for_stats(value, log_warning=False) for name, value in values.items() if value}
    return tags | valid
