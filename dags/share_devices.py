"""Share the cores of one machine among all trainings that ask for a share, whichever DAG they are of.

A training takes part with ``DeadlineTrainingOperator(..., pool="trainings", shared=True)``: it begins when it has been
given some cores, never has more than that, and stands still, its checkpoint kept, while others need them more. Turn
this DAG on and it runs all the time. It talks to Airflow's own API through the connection ``airflow_api``.
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
        description="How many there are to share.",
    ),
    "policy": Param(
        "on_time",
        enum=["on_time", "edf", "fifo", "priority", "greedy", "growing", "milp"],
        title="Who gets how much",
        description_md="`on_time`: as many deadlines kept as can be; the others are there to compare with.",
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
