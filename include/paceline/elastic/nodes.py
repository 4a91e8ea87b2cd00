"""The job specifications of a team's nodes: parameter servers, and workers that run the training code."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from paceline.elastic._configuration import is_worker
from paceline.runtime import JobSpec, TeamNetwork
from paceline.train.job import ENV_SERVER, ENV_WORKER
from paceline.train.parameter_server.plan import PLAN, PORT, SERVER_COMMAND, SHARD_COMMAND

LABEL_TEAM, LABEL_NODE = "paceline.team", "paceline.node"
FIRST_SERVER = "ps-0"


def write_plan(folder: Path, max_workers: int) -> Path:
    """Write the parameter server's plan: the names of the permitted workers, with equal initial shards."""
    path = folder / PLAN
    workers = {f"worker-{number}": {"samples": 1.0} for number in range(max_workers)}
    path.write_text(json.dumps({"workers": workers}))
    return path


def node_spec(training: JobSpec, name: str, cores: float, plan: Path) -> JobSpec:
    """Return the job specification of one node of a team.

    Parameters
    ----------
    training:
        Specification of the training job as a single job; workers run its command with its files.
    name:
        Name of the node: ``ps-0``, which gets the plan, ``ps-1``, …, ``worker-0``, …
    cores:
        Initial allocation of the node.
    plan:
        Path of the plan.

    Examples
    --------
    >>> train = JobSpec("train-1", ["python", "train.py"], devices=4, min_devices=1, max_devices=12, image="trainer")
    >>> worker = node_spec(train, "worker-0", 1.5, Path("plan.json"))
    >>> worker.name, worker.devices, worker.min_devices, worker.max_devices
    ('train-1-worker-0', 1.5, None, None)
    >>> worker.environment["PACELINE_SERVER"], worker.team_network.name
    ('ps-0:29500', 'paceline-train-1')
    """
    spec = replace(
        training,
        name=f"{training.name}-{name}",
        devices=cores,
        min_devices=None,  # those of the whole team
        max_devices=None,
        checkpoint=training.checkpoint if name == FIRST_SERVER else None,
        team_network=TeamNetwork(f"paceline-{training.name}", name if name == FIRST_SERVER else None),
        labels={**training.labels, LABEL_TEAM: training.name, LABEL_NODE: name},
    )
    if name == FIRST_SERVER:
        return replace(spec, command=SERVER_COMMAND, files={PLAN: plan}, inputs={}, environment={}, gpus=0)
    environment = {ENV_SERVER: f"{FIRST_SERVER}:{PORT}", ENV_WORKER: name}
    if is_worker(name):
        return replace(spec, environment={**training.environment, **environment})
    return replace(spec, command=SHARD_COMMAND, files={}, inputs={}, environment=environment, gpus=0)
