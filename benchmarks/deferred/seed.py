"""Makes the tasks of a paused DAG deferred, as their worker processes would have left them.

``python -m benchmarks.deferred`` runs this module in the environment of its Airflow. A worker process needs seconds to
start a task, so that a thousand of them would take longer than the measurement.
"""

from __future__ import annotations

import json
import sys
from datetime import datetime, timezone

from airflow.models.dagrun import DagRun
from airflow.models.task_state_store import TaskStateStoreModel
from airflow.models.taskinstance import TaskInstance
from airflow.models.trigger import Trigger
from airflow.utils.session import create_session
from airflow.utils.state import DagRunState, TaskInstanceState
from sqlalchemy import select

from benchmarks.deferred.runtime import CORES, Simulated, record
from paceline.contract import CONTAINER, Deadline
from paceline.operators.deferred import DeferredJob
from paceline.operators.triggers import TrainingTrigger
from paceline.run.settings import Settings


def defer(deadline_s: float, runtime: Simulated) -> None:
    """Store a trigger and the live state for each task of all runs."""
    now = datetime.now(timezone.utc)
    settings = Settings(deadline=Deadline(deadline_s), written=f"{deadline_s:g}s", max_devices=CORES)
    with create_session() as session:
        for run in session.scalars(select(DagRun)):
            run.state, run.start_date = DagRunState.RUNNING, now
        for ti in session.scalars(select(TaskInstance)).all():
            name = f"{ti.run_id}-{ti.task_id}"
            place = (runtime.serialize(), name, {"job": name}, now, ti.pool)
            trigger = Trigger.from_object(TrainingTrigger(DeferredJob(settings, *place, 1, ti.max_tries).to_json()))
            session.add(trigger)
            session.flush()
            ti.trigger_id, ti.state, ti.start_date, ti.try_number = trigger.id, TaskInstanceState.DEFERRED, now, 1
            ti.next_method, ti.next_kwargs = "execute_continued", {}
            session.add(
                TaskStateStoreModel(
                    dag_run_id=ti.dag_run.id,
                    dag_id=ti.dag_id,
                    run_id=ti.run_id,
                    task_id=ti.task_id,
                    map_index=-1,
                    key=CONTAINER,
                    value=json.dumps(record(name).to_json()),
                )
            )


if __name__ == "__main__":
    defer(float(sys.argv[1]), Simulated(**json.loads(sys.argv[2])))
