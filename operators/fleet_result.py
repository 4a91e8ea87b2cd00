"""``FleetResultOperator``: combines the results of the workers of a distributed training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException

if TYPE_CHECKING:
    from airflow.sdk import Context

# Result keys that are equal for all workers, and keys that differ between workers.
_COMMON_KEYS = ("model", "deadline_s", "runtime", "loss", "metrics")
_WORKER_KEYS = ("finished_s", "error_pct", "mean_devices", "device_seconds")


class FleetResultOperator(BaseOperator):
    """A task that combines the results of a distributed training's workers for the downstream tasks.

    :func:`~paceline.operators.train_on_fleet` creates this task as the last task of the group.

    Parameters
    ----------
    worker_task_ids:
        Mapping of worker names to the ids of the workers' tasks.

    Returns
    -------
    dict
        ``model``, ``finished_s``, ``deadline_s``, ``error_pct``, ``runtime``, ``loss`` and ``metrics`` of the worker
        that ended last, as :class:`~paceline.operators.DeadlineTrainingOperator` returns them. Every worker that
        succeeds ends with the parameter server's model. ``met`` is true if every worker met its deadline.
        ``device_seconds`` and ``mean_devices`` are sums over the workers. ``workers`` contains each worker's values.

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
                results[worker] = result
        if not results:
            raise AirflowFailException("no worker finished the training; see the workers' task logs")
        return combine_results(results)


def combine_results(results: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Combine the workers' results into one result.

    >>> one = {"model": "a", "deadline_s": 60.0, "finished_s": 59.0, "error_pct": -1.7, "device_seconds": 30.0}
    >>> both = combine_results({"a": one, "b": {**one, "model": "b", "finished_s": 59.5, "error_pct": -0.8}})
    >>> both["model"], both["finished_s"], both["device_seconds"], sorted(both["workers"])
    ('b', 59.5, 60.0, ['a', 'b'])
    """
    last = max(results.values(), key=_end_s)
    device_s = sum(float(one["device_seconds"]) for one in results.values())
    return {
        **{name: last[name] for name in _COMMON_KEYS if name in last},
        "finished_s": last["finished_s"],
        "error_pct": last["error_pct"],
        "met": all(float(one["error_pct"]) <= 0 for one in results.values()),
        "device_seconds": round(device_s, 3),
        "mean_devices": round(sum(float(one.get("mean_devices") or 0.0) for one in results.values()), 3),
        "workers": {name: _select(result, _WORKER_KEYS) for name, result in results.items()},
    }


def _end_s(result: Mapping[str, Any]) -> float:
    """Return the Unix time at which a worker ended. ``finished_s`` may count from a different time for each worker."""
    origin = datetime.fromisoformat(result["origin"]).timestamp() if "origin" in result else 0.0
    return origin + float(result["finished_s"])


def _select(result: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: result[name] for name in names if name in result}
