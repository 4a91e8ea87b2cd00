"""Paceline: retrain models when they drift, by the time you need them.

The engine under ``paceline`` knows nothing of Airflow; ``paceline.operators``,
``paceline.sensors`` and ``paceline.plugins`` bring it into Airflow.
"""

__version__ = "0.1.0"
