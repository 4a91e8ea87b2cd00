"""``ParameterServerOperator``: keeps the state of a training that runs on several machines."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ._team import PORT, SERVER, network_name, read_plan, server_key
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
    key_conn_id:
        Connection whose password server and workers prove to each other. Not needed where they have a network of
        their own, as on one engine.
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
        key_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("runtime", "docker")
        # Workers wait for it: where slots are few, it must not wait for theirs.
        kwargs.setdefault("priority_weight", 1000)
        module = "paceline.train.asynchronous"
        super().__init__(
            command=["python", "-m", module, "plan.json", "--host", "0.0.0.0", "--port", str(PORT)],  # noqa: S104
            min_devices=cores,
            max_devices=cores,
            **kwargs,
        )
        self.plan = plan
        self.training = training
        self.key_conn_id = key_conn_id

    def job_spec(
        self,
        context: Context,
        scratch: Path,
        devices: float,
        *,
        inputs: Mapping[str, str] | None = None,
        suffix: str = "",
    ) -> JobSpec:
        """The server's container, in the training's own network."""
        spec = super().job_spec(context, scratch, devices, inputs=inputs, suffix=suffix)
        plan = scratch / "plan.json"
        plan.write_text(json.dumps({"workers": read_plan(self.plan)["workers"]}, sort_keys=True))
        return replace(
            spec,
            files={**spec.files, plan.name: plan},
            environment={**spec.environment, **server_key(self.key_conn_id)},
            own_network=network_name(context, self.training),
            alias=SERVER,
        )
