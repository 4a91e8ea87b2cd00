"""``ParameterServerOperator``: keeps the state of a training that runs on several machines."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ._team import SERVER, in_containers, network_name, parts_of
from .train import DeadlineTrainingOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

    from paceline.runtime.base import JobSpec


class ParameterServerOperator(DeadlineTrainingOperator):
    """Runs the parameter server of a training on several machines, until every sample of every epoch is done.

    It lends batches to the workers, adds up what they learn, and goes on from its last checkpoint when it dies: the
    retry starts it again, and the workers come back to it by themselves. Beside it runs one
    :class:`~paceline.operators.WorkerTrainingOperator` for each machine.

    Parameters
    ----------
    plan:
        The schedule: which worker trains on how many of the samples, and how many at a time. (templated)
    training:
        Tells several trainings of one DAG apart.
    cores:
        Cores of the server.
    **kwargs:
        As for :class:`~paceline.operators.DeadlineTrainingOperator`; ``deadline`` is that of the workers.

    Returns
    -------
    dict
        As :class:`~paceline.operators.DeadlineTrainingOperator`; ``metrics`` has how many failures there were.

    Examples
    --------
    >>> from paceline.operators import ParameterServerOperator
    >>> plan = {"workers": {"gate-1": {"samples": 600, "batch_size": 32}}}
    >>> server = ParameterServerOperator(task_id="server", plan=plan, deadline="20m")
    """

    template_fields: Sequence[str] = (*DeadlineTrainingOperator.template_fields, "plan")
    ui_color = "#e6e0ff"

    def __init__(
        self,
        *,
        plan: Mapping[str, Any] | str | Any,
        training: str = "training",
        cores: float = 1.0,
        **kwargs: Any,
    ) -> None:
        # Workers wait for it: where slots are few, it must not wait for theirs.
        kwargs.setdefault("priority_weight", 1000)
        # All addresses of a container whose only network has no way in or out.
        command = ["python", "-m", "paceline.train.asynchronous", "plan.json", "--host", "0.0.0.0"]  # noqa: S104
        super().__init__(command=command, min_devices=cores, max_devices=cores, **in_containers(kwargs))
        self.plan = plan
        self.training = training

    def placed(self, context: Context, spec: JobSpec, scratch: Path) -> JobSpec:
        """With its plan, and in the training's own network."""
        plan = scratch / "plan.json"
        workers = {name: asdict(part) for name, part in parts_of(self.plan).items()}
        plan.write_text(json.dumps({"workers": workers}, sort_keys=True))
        files = {**spec.files, plan.name: plan}
        return replace(spec, files=files, own_network=network_name(context, self.training), alias=SERVER)
