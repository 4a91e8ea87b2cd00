"""What Airflow's provider manager asks of this package, through the ``apache_airflow_provider`` entry point.

Called by every Airflow process at its start, so it imports nothing heavier than the package itself.
"""

from __future__ import annotations

from typing import Any

from paceline import __version__

_INTEGRATION = "Paceline"


def get_provider_info() -> dict[str, Any]:
    """Describe Paceline to Airflow (shown by ``airflow providers get airflow-paceline`` and in the UI).

    Returns
    -------
    dict
        Valid by Airflow's ``provider_info.schema.json``.

    Examples
    --------
    >>> get_provider_info()["package-name"]
    'airflow-paceline'
    """
    return {
        "package-name": "airflow-paceline",
        "name": "Paceline",
        "description": "Retrain models when they drift, by the time you need them: deadline-controlled training.",
        "versions": [__version__],
        "integrations": [
            {
                "integration-name": _INTEGRATION,
                "external-doc-url": "https://github.com/paceline/airflow-paceline",
                "tags": ["software"],
            }
        ],
        "operators": [{"integration-name": _INTEGRATION, "python-modules": ["paceline.operators"]}],
        "sensors": [{"integration-name": _INTEGRATION, "python-modules": ["paceline.sensors"]}],
        "extra-links": ["paceline.sensors.reports.DriftReportLink"],
        "triggers": [{"integration-name": _INTEGRATION, "python-modules": ["paceline.sensors"]}],
    }
