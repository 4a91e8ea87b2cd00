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
        "extra-links": [
            "paceline.operators._links.ContainerLogsLink",
            "paceline.operators._links.ModelLink",
            "paceline.sensors.reports.DriftReportLink",
        ],
        "notifications": ["paceline.operators.LogNotifier"],
        "config": {
            "paceline": {
                "description": "Retraining by deadlines.",
                "options": {
                    "container_logs_url": {
                        "description": "Address of a log system that keeps what containers write, with ``{container}`` "
                        'for the container\'s id: the button "Container logs" of each training.',
                        "version_added": "0.1.0",
                        "type": "string",
                        "example": "https://logs.example.com/?container={container}",
                        "default": "",
                    }
                },
            }
        },
        "triggers": [{"integration-name": _INTEGRATION, "python-modules": ["paceline.sensors"]}],
    }
