"""Start a DAG run when the production data drifts. The triggerer checks the data and fires the starting event.

The trigger checks the newest month of the table ``flights`` at the connection ``paceline_store``. ``make demo`` fills
the table: columns ``window`` ('2013-07'), ``day``, the features below, ``predicted`` and the true label ``late``.
"""

from __future__ import annotations

import os
from typing import Any

from airflow.sdk import DAG, Asset, AssetWatcher, task

from paceline.sensors import DriftEventTrigger

HOME = os.path.expanduser(os.environ.get("AIRFLOW_HOME", "~/airflow"))
STORAGE = os.environ.get("PACELINE_STORAGE", f"file://{HOME}/paceline-data")

COLUMNS = "day, carrier, origin, dep_hour, distance, temp, humid, wind_speed, precip, pressure, visib, predicted, late"
FLIGHTS = f'SELECT "window", {COLUMNS} FROM flights'  # noqa: S608  (our own names)

flights_watch = Asset(
    "flights_watch",
    watchers=[
        AssetWatcher(
            name="newest_month",
            trigger=DriftEventTrigger(
                conn_id="paceline_store",
                reference=FLIGHTS + """ WHERE "window" = '2013-02'""",
                current=FLIGHTS + """ WHERE "window" = (SELECT MAX("window") FROM flights)""",  # noqa: S608
                prediction="predicted",
                actual="late",
                time="day",
                fire_on="new_window",  # fire at most one event for each month, although the newest month still grows
                window_column="window",
                poll_interval_s=30,
                report_dir=STORAGE + "/watch",
            ),
        )
    ],
)

with DAG("watch_for_drift", schedule=[flights_watch], tags=["paceline", "example"], doc_md=__doc__) as dag:

    @task
    def print_drifted_features(triggering_asset_events: Any = None) -> list[str]:
        """Print and return the drifted features. Your own DAG would start training here."""
        result = triggering_asset_events[flights_watch][-1].extra["payload"]
        print(result["reason"])
        print(f"Report: {result['report_html']}")
        drifted: list[str] = result["drifted_features"]
        return drifted

    print_drifted_features()
