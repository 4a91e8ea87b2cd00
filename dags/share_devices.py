"""Share the cores of one machine among the trainings of any DAG.

A training takes part with ``DeadlineTrainingOperator(..., pool="trainings", shared=True)``: it starts when it has a
grant, never exceeds the grant, and is preempted, with its checkpoint kept, while other trainings need the cores more.
Once unpaused, this DAG runs continuously. It calls Airflow's API through the connection ``airflow_api``.
"""

from __future__ import annotations

import os

from airflow.sdk import DAG, Param

from paceline.operators import ArbiterOperator

PARAMS = {
    "devices": Param(
        os.cpu_count() or 1,
        type="number",
        exclusiveMinimum=0,
        title="Cores",
        description="Number of cores to share.",
    ),
    "policy": Param(
        "on_time",
        enum=["on_time", "edf", "fifo", "priority", "greedy", "growing", "milp"],
        title="Policy",
        description_md="`on_time`: meets as many deadlines as possible; the others are for comparison.",
    ),
}

with DAG(
    "share_devices",
    schedule="@continuous",
    max_active_runs=1,
    catchup=False,
    params=PARAMS,
    tags=["paceline", "example"],
    doc_md=__doc__,
):
    ArbiterOperator(
        task_id="arbiter",
        pool="trainings",
        devices="{{ params.devices }}",
        policy="{{ params.policy }}",
        conn_id="airflow_api",
    )
