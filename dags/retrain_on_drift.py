"""Retrain the flight-delay model by a deadline when the production data has drifted from the training data.

drift -> prepare -> train -> evaluate -> promote. Try it with `make demo`, or with `make up` and the trigger form.
The production data is the table ``flights`` of the connection ``paceline_store``.
"""

from __future__ import annotations

import csv
import os
from datetime import date, timedelta

from airflow.sdk import (
    DAG,
    Asset,
    AsyncCallback,
    BaseHook,
    DeadlineAlert,
    DeadlineReference,
    ObjectStoragePath,
    Param,
    task,
)

from paceline.operators import DeadlineTrainingOperator, EvaluateOperator, LogNotifier, PromoteOperator
from paceline.sensors import DriftSensor

# Storage for runs, reports and models. Workers on several machines need a shared folder, or s3://conn_id@bucket/...
HOME = os.path.expanduser(os.environ.get("AIRFLOW_HOME", "~/airflow"))
STORAGE = os.environ.get("PACELINE_STORAGE", f"file://{HOME}/paceline-data")
RUN = STORAGE + "/runs/{{ run_id }}"
REGISTRY = STORAGE + "/registry"
# Whether the triggerer controls the training, which needs no worker slot then. Set it where the triggerer uses the
# engine of the workers, as in `make demo`; otherwise, Airflow's default applies.
DEFERRABLE = True if os.environ.get("PACELINE_DEFERRABLE") == "true" else None


WATCHED = "carrier, origin, dep_hour, distance, temp, humid, wind_speed, precip, pressure, visib"
USED = f"{WATCHED}, dewp, dest, weekday, late"
WINDOW = f'SELECT day, {WATCHED}, predicted, late FROM flights WHERE "window" = '  # noqa: S608  (our own names)

PARAMS = {
    "deadline": Param(
        "60s",
        type=["string", "number"],
        title="Deadline",
        description_md="Time by which training ends, counted from the start of this run: `90s`, `20m`, `PT20M`, a "
        "number of seconds, or a time such as `2030-01-31T18:00:00Z`. During training, change it on the run's Pace "
        "tab, or with `paceline deadline set retrain_on_drift RUN train 15m`.",
    ),
    "alpha": Param(
        1.0,
        type="number",
        exclusiveMinimum=0,
        maximum=1,
        title="Safety factor",
        description_md="The target end is `alpha` times the deadline; 1 uses all of the time.",
    ),
    "min_devices": Param(0.1, type="number", minimum=0.05, title="Minimum cores", description="Smallest allocation."),
    "max_devices": Param(
        None,
        type=["null", "number"],
        minimum=0.05,
        title="Maximum cores",
        description="Largest allocation. Empty: all cores.",
    ),
    "on_infeasible": Param(
        "best_effort",
        enum=["best_effort", "fail", "extend"],
        title="If the deadline cannot be met",
        description_md="`best_effort` continues on all cores, `fail` ends the run, `extend` moves the deadline.",
    ),
    "runtime": Param(
        "auto",
        enum=["auto", "docker", "process"],
        title="Runtime",
        description_md="`auto`: a container if a Docker engine has the image, else a local process, not as root.",
    ),
    "reference_window": Param("2013-02", type="string", pattern=r"^\d{4}-\d{2}$", title="Reference month"),
    "current_window": Param("2013-07", type="string", pattern=r"^\d{4}-\d{2}$", title="Month to check for drift"),
    "hold_out_days": Param(
        7, type="integer", minimum=1, maximum=20, title="Held-out days", description="The last days of the month."
    ),
    "epochs": Param(9, type="integer", minimum=1, title="Epochs", description="Passes over the training data."),
    "min_improvement": Param(0.0, type="number", minimum=0, title="Minimum improvement of AUC for a promotion"),
}

with DAG(
    "retrain_on_drift",
    schedule=None,
    params=PARAMS,
    max_active_runs=1,
    # Airflow's own deadline for the whole run: log a message if the run takes longer than an hour.
    deadline=DeadlineAlert(
        name="the whole run",
        reference=DeadlineReference.DAGRUN_QUEUED_AT,
        interval=timedelta(hours=1),
        callback=AsyncCallback(LogNotifier, {"message": "retrain_on_drift has not ended within an hour"}),
    ),
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
        outlets=[Asset("flights_drift")],
    )

    @task
    def prepare(folder: str, window: str, hold_out_days: str) -> dict[str, str]:
        """Write the window's last days as the hold-out set, and all earlier flights as the training data."""
        store = BaseHook.get_hook("paceline_store")
        newest = f'SELECT max(day) FROM flights WHERE "window" = {store.placeholder}'  # noqa: S608
        (last,) = store.get_first(newest, [window])
        until = (date.fromisoformat(last) - timedelta(days=int(hold_out_days))).isoformat()
        days = f"day > {store.placeholder} AND day <= {store.placeholder}"
        between = f"SELECT {USED} FROM flights WHERE {days} ORDER BY id"  # noqa: S608
        for name, limits in {"train": ["", until], "holdout": [until, last]}.items():
            rows = store.get_records(between, limits)
            target = ObjectStoragePath(f"{folder}/{name}.csv")
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("w", newline="") as file:
                csv.writer(file).writerows([USED.split(", "), *rows])
            print(f"{name}: {len(rows):,} flights up to {limits[1]}")
        return {"until": until, "hold_out_until": last}

    data = prepare(RUN, "{{ params.current_window }}", "{{ params.hold_out_days }}")

    train = DeadlineTrainingOperator(
        task_id="train",
        script="training/train.py",
        inputs={"train.csv": RUN + "/train.csv"},
        environment={"EPOCHS": "{{ params.epochs }}"},
        deadline="{{ params.deadline }}",
        deadline_from="run",
        alpha="{{ params.alpha }}",
        min_devices="{{ params.min_devices }}",
        max_devices="{{ params.max_devices }}",
        on_infeasible="{{ params.on_infeasible }}",
        on_deadline_alert=LogNotifier(),
        runtime="{{ params.runtime }}",
        deferrable=DEFERRABLE,
        output=RUN + "/model",
    )

    evaluate = EvaluateOperator(
        task_id="evaluate",
        script="training/evaluate.py",
        files={"train.py": "training/train.py"},
        model="flights-late",
        registry=REGISTRY,
        challenger="{{ ti.xcom_pull('train')['model'] }}",
        data={"holdout.csv": RUN + "/holdout.csv"},
        metric="auc",
        data_window=data,
        lineage={"drift_report": "{{ ti.xcom_pull('drift')['report_json'] }}", "training": train.output},
        runtime="{{ params.runtime }}",
    )

    promote = PromoteOperator(
        task_id="promote",
        registry=REGISTRY,
        evaluation=evaluate.output,
        min_improvement="{{ params.min_improvement }}",
        outlets=[Asset("flights_champion")],
    )

    drift >> data >> train >> evaluate >> promote
