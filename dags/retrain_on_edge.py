"""Retrain the flight-delay model on the machines at the airports, alongside their camera applications.

drift -> prepare -> profile -> schedule -> train -> evaluate -> promote. `profile` measures new machines with the real
training script and the real applications. `schedule` chooses the machines with capacity to train, and assigns a shard
of the flights to each machine. Try it with `make demo-edge`, after `make image neighbour-image`.

The fleet is `edge/fleet.yaml` or the file in `$PACELINE_FLEET`. The training code is the same as in `retrain_on_drift`;
the code needs no change for several machines.
"""

from __future__ import annotations

import csv
import os
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Asset, BaseHook, ObjectStoragePath, Param, task

from paceline.fleet import load
from paceline.operators import (
    EvaluateOperator,
    ProfileOperator,
    PromoteOperator,
    ScheduleOperator,
    train_on_fleet,
)
from paceline.sensors import DriftSensor

HOME = os.path.expanduser(os.environ.get("AIRFLOW_HOME", "~/airflow"))
STORAGE = os.environ.get("PACELINE_STORAGE", f"file://{HOME}/paceline-data")
RUN = STORAGE + "/runs/{{ run_id }}"
REGISTRY = STORAGE + "/registry"
PROFILES = STORAGE + "/profiles"
FLEET = load(os.environ.get("PACELINE_FLEET") or Path(__file__).parent / "edge" / "fleet.yaml")

WATCHED = "carrier, origin, dep_hour, distance, temp, humid, wind_speed, precip, pressure, visib"
USED = f"{WATCHED}, dewp, dest, weekday, late"
WINDOW = f'SELECT day, {WATCHED}, predicted, late FROM flights WHERE "window" = '  # noqa: S608  (our own names)

PARAMS = {
    "deadline": Param(
        "120s",
        type=["string", "number"],
        title="Deadline",
        description_md="Time by which training ends, counted from its start on each machine: `90s`, `20m`, `PT20M`, a "
        "number of seconds, or a time such as `2030-01-31T18:00:00Z`.",
    ),
    "scheduler": Param(
        "default",
        enum=["default", "deep_edge", "fair"],
        title="Scheduler",
        description_md="`default`: earliest end; `deep_edge`: Algorithm 1 of the paper; `fair`: equal shards, "
        "regardless of neighbours.",
    ),
    "points": Param(16, type="integer", minimum=16, title="Measurements of new machines"),
    "reference_window": Param("2013-02", type="string", pattern=r"^\d{4}-\d{2}$", title="Reference month"),
    "current_window": Param("2013-07", type="string", pattern=r"^\d{4}-\d{2}$", title="Month to check for drift"),
    "train_days": Param(
        112, type="integer", minimum=1, title="Training days", description="Limited by the memory of small machines."
    ),
    "hold_out_days": Param(
        7, type="integer", minimum=1, maximum=20, title="Held-out days", description="The last days of the month."
    ),
    "epochs": Param(7, type="integer", minimum=1, title="Epochs", description="Passes over the training data."),
    "min_improvement": Param(0.0, type="number", minimum=0, title="Minimum improvement of AUC for a promotion"),
}

TRAINING: dict[str, Any] = {
    "script": "training/train.py",
    "inputs": {"train.csv": RUN + "/train.csv"},
    "environment": {"EPOCHS": "{{ params.epochs }}"},
}

with DAG(
    "retrain_on_edge",
    schedule=None,
    params=PARAMS,
    max_active_runs=1,
    tags=["paceline", "example"],
    doc_md=__doc__,
) as dag:
    drift = DriftSensor(
        task_id="drift",
        conn_id="paceline_store",
        reference=WINDOW + "'{{ params.reference_window }}'",
        current=WINDOW + "'{{ params.current_window }}'",
        prediction="predicted",
        actual="late",
        time="day",
        on_no_drift="skip",
        report_dir=STORAGE + "/drift",
    )

    @task
    def prepare(folder: str, window: str, train_days: str, hold_out_days: str) -> dict[str, Any]:
        """Write the window's last days as the hold-out set, and the ``train_days`` days before as the training data."""
        store = BaseHook.get_hook("paceline_store")
        newest = f'SELECT max(day) FROM flights WHERE "window" = {store.placeholder}'  # noqa: S608
        (last,) = store.get_first(newest, [window])
        until = date.fromisoformat(last) - timedelta(days=int(hold_out_days))
        since = until - timedelta(days=int(train_days))
        days = f"day > {store.placeholder} AND day <= {store.placeholder}"
        between = f"SELECT {USED} FROM flights WHERE {days} ORDER BY id"  # noqa: S608
        counts = {}
        for name, limits in {"train": [str(since), str(until)], "holdout": [str(until), last]}.items():
            rows = store.get_records(between, limits)
            target = ObjectStoragePath(f"{folder}/{name}.csv")
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("w", newline="") as file:
                csv.writer(file).writerows([USED.split(", "), *rows])
            counts[name] = len(rows)
            print(f"{name}: {len(rows):,} flights up to {limits[1]}")
        return {"since": str(since), "until": str(until), "hold_out_until": last, "samples": counts["train"]}

    data = prepare(RUN, "{{ params.current_window }}", "{{ params.train_days }}", "{{ params.hold_out_days }}")

    profile = ProfileOperator(
        task_id="profile",
        fleet=FLEET,
        profiles=PROFILES,
        points="{{ params.points }}",
        measure_s=1.5,
        batch_sizes=[256],
        **TRAINING,
    )

    schedule = ScheduleOperator(
        task_id="schedule",
        fleet=FLEET,
        profiles=PROFILES,
        samples="{{ ti.xcom_pull('prepare')['samples'] }}",
        epochs="{{ params.epochs }}",
        scheduler="{{ params.scheduler }}",
    )

    train = train_on_fleet(
        fleet=FLEET, plan=schedule.output, deadline="{{ params.deadline }}", deadline_from="task", **TRAINING
    )

    evaluate = EvaluateOperator(
        task_id="evaluate",
        script="training/evaluate.py",
        files={"train.py": "training/train.py"},
        model="flights-late",
        registry=REGISTRY,
        challenger="{{ ti.xcom_pull('train.result')['model'] }}",
        data={"holdout.csv": RUN + "/holdout.csv"},
        metric="auc",
        data_window=data,
        lineage={
            "drift_report": "{{ ti.xcom_pull('drift')['report_json'] }}",
            "training": "{{ ti.xcom_pull('train.result') }}",
            "schedule": "{{ ti.xcom_pull('schedule')['workers'] }}",
        },
    )

    promote = PromoteOperator(
        task_id="promote",
        registry=REGISTRY,
        evaluation=evaluate.output,
        min_improvement="{{ params.min_improvement }}",
        outlets=[Asset("flights_champion")],
    )

    drift >> data >> profile >> schedule >> train >> evaluate >> promote
