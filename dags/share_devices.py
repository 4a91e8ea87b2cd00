"""Share the cores of one machine among the training jobs of all DAGs.

A ``DeadlineTrainingOperator(..., pool="training", shared=True)`` starts its job when the arbiter has granted cores. The
job never exceeds its grant. The arbiter may preempt a job for more urgent jobs; the job resumes later from its
checkpoint. Once unpaused, this DAG runs continuously. It calls Airflow's API through the connection ``airflow_api``.
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
        "on_time_promises",
        enum=["on_time_promises", "on_time", "edf", "fifo", "priority", "greedy", "growing", "milp"],
        title="Policy",
        description_md="`on_time_promises` meets the deadlines that it promises; the others are for comparison.",
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
        pool="training",
        devices="{{ params.devices }}",
        policy="{{ params.policy }}",
        conn_id="airflow_api",
    )
