"""The provider metadata that Airflow reads through the ``apache_airflow_provider`` entry point.

Every Airflow process imports this module at startup, so the module imports only ``paceline``.
"""

from __future__ import annotations

from typing import Any

from paceline import __version__

_INTEGRATION = "Paceline"


def get_provider_info() -> dict[str, Any]:
    """Return the metadata that ``airflow providers get airflow-paceline`` and the UI show.

    Returns
    -------
    dict
        Conforms to Airflow's ``provider_info.schema.json``.

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
        "hooks": [{"integration-name": _INTEGRATION, "python-modules": ["paceline.airflow.mlflow_hook"]}],
        "connection-types": [
            {"connection-type": "mlflow", "hook-class-name": "paceline.airflow.mlflow_hook.MlflowHook"}
        ],
        "operators": [{"integration-name": _INTEGRATION, "python-modules": ["paceline.operators"]}],
        "sensors": [{"integration-name": _INTEGRATION, "python-modules": ["paceline.sensors"]}],
        "extra-links": [
            "paceline.operators.links.ContainerLogsLink",
            "paceline.operators.links.ModelLink",
            "paceline.sensors.reports.DriftReportLink",
        ],
        "notifications": ["paceline.operators.LogNotifier"],
        "config": {
            "paceline": {
                "description": "Deadline-controlled retraining.",
                "options": {
                    "container_logs_url": {
                        "description": "URL of a log system for the containers' output, with ``{container}`` for the "
                        'container\'s id. The button "Container logs" of each training job opens it.',
                        "version_added": "0.1.0",
                        "type": "string",
                        "example": "https://logs.example.com/?container={container}",
                        "default": "",
                    },
                    "allowed_runtimes": {
                        "description": "Where jobs may run: names of installed runtimes, separated by commas, such as "
                        "``docker`` (in containers) or ``process`` (as local processes on the worker). By default all, "
                        'except that a job with ``runtime="auto"`` does not fall back to a local process if the worker '
                        "runs as root. Set it on the workers.",
                        "version_added": "0.1.0",
                        "type": "string",
                        "example": "docker",
                        "default": "",
                    },
                    "late_weight": {
                        "description": "Cost of ending a second after the deadline, relative to that of ending a "
                        "second before it. The plan of a job's first run reserves time for what comes after the last "
                        "batch accordingly. Set it on the workers.",
                        "version_added": "0.1.0",
                        "type": "float",
                        "example": "1",
                        "default": "5",
                    },
                    "api_url": {
                        "description": "Base URL at which triggerers reach Airflow's API server. Set it on the "
                        "triggerers. Default: ``[api] base_url``, else that of ``[core] execution_api_server_url``.",
                        "version_added": "0.1.0",
                        "type": "string",
                        "example": "http://airflow-api-server:8080",
                        "default": "",
                    },
                    "read_registries": {
                        "description": "Whether the API server reads the registries that tasks name, for the pages of "
                        "models, and lets users change a champion there: local folders, and MLflow servers through "
                        "connections of the type ``mlflow``. Set it on the API server.",
                        "version_added": "0.1.0",
                        "type": "boolean",
                        "example": None,
                        "default": "True",
                    },
                    "read_object_stores": {
                        "description": "URLs of object stores, separated by commas, that the API server may open to "
                        "read the champions of registries there or below. It needs the Airflow provider of the store. "
                        "Set it on the API server.",
                        "version_added": "0.1.0",
                        "type": "string",
                        "example": "s3://aws_default@models",
                        "default": "",
                    },
                    "allow_root": {
                        "description": "Whether tasks may run containers as root, with "
                        "``Docker(allow_root=True)``. Set it on the workers.",
                        "version_added": "0.1.0",
                        "type": "boolean",
                        "example": None,
                        "default": "True",
                    },
                },
            }
        },
        "triggers": [{"integration-name": _INTEGRATION, "python-modules": ["paceline.sensors", "paceline.operators"]}],
    }
