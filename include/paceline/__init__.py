"""Paceline: retrain models when they drift, by the time you need them.

The engine under ``paceline`` does not depend on Airflow; ``paceline.operators``,
``paceline.sensors`` and ``paceline.plugins`` integrate it into Airflow.
"""

__version__ = "0.1.0"
