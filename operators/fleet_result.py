"""``FleetResultOperator``: combines the results of the workers of a distributed training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException
from pydantic import ValidationError

from paceline.airflow.tasks import CheckedTask
from paceline.contract import FleetResult, TrainingResult, WorkerResult, input_error

if TYPE_CHECKING:
    from airflow.sdk import Context


class FleetResultOperator(CheckedTask, BaseOperator):
    """A task that combines the results of a distributed training's workers for the downstream tasks.

    :func:`~paceline.operators.train_on_fleet` creates this task as the last task of the group.

    Parameters
    ----------
    worker_task_ids:
        Mapping of worker names to the ids of the workers' tasks.

    Returns
    -------
    dict
        See :class:`~paceline.contract.FleetResult`. The model is that of the worker that ended last: every worker that
        succeeds ends with the parameter server's model.

    Examples
    --------
    >>> from paceline.operators import FleetResultOperator
    >>> result = FleetResultOperator(task_id="result", worker_task_ids={"gate-1": "train.gate-1"})
    """

    ui_color = "#e6e0ff"

    def __init__(self, *, worker_task_ids: Mapping[str, str], **kwargs: Any) -> None:
        # Run this task even if some workers' tasks are skipped because the schedule excludes those workers.
        kwargs.setdefault("trigger_rule", "none_failed_min_one_success")
        super().__init__(**kwargs)
        self.worker_task_ids = dict(worker_task_ids)

    def execute(self, context: Context) -> dict[str, Any]:
        """Combine the results of the workers that trained."""
        results = {}
        for worker, task_id in self.worker_task_ids.items():
            result = context["ti"].xcom_pull(task_ids=task_id, map_indexes=-1)
            if result:
                results[worker] = _read_result(task_id, result)
        if not results:
            raise AirflowFailException("no worker finished the training; see the workers' task logs")
        return combine_results(results).to_json()


def _read_result(task_id: str, result: object) -> TrainingResult:
    try:
        return TrainingResult.model_validate(result, extra="ignore")
    except ValidationError as error:
        raise AirflowFailException(str(input_error(task_id, error))) from error


def combine_results(results: Mapping[str, TrainingResult]) -> FleetResult:
    """Combine the workers' results, by their names, into one result."""
    # `finished_s` may count from a different time for each worker.
    last = max(results.values(), key=lambda one: one.origin.timestamp() + one.finished_s)
    return FleetResult(
        model=last.model,
        runtime=last.runtime,
        deadline_s=last.deadline_s,
        loss=last.loss,
        metrics=last.metrics,
        finished_s=last.finished_s,
        error_pct=last.error_pct,
        met=all(one.met for one in results.values()),
        device_seconds=sum(one.device_seconds for one in results.values()),
        mean_devices=sum(one.mean_devices for one in results.values()),
        workers={
            name: WorkerResult(**{field: getattr(one, field) for field in WorkerResult.model_fields})
            for name, one in results.items()
        },
    )
