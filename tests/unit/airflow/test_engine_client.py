"""A connection to an engine: without an answer a retry may succeed, with an unusable connection it cannot."""

from __future__ import annotations

import socket
from unittest.mock import Mock

import pytest
from airflow.sdk.exceptions import AirflowNotFoundException

from paceline.airflow._engine_client import connect
from paceline.errors import InvalidInputError, RuntimeUnavailableError


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (socket.gaierror(-2, "Name or service not known"), RuntimeUnavailableError),
        (OSError(None, "Unable to connect to port 22 on 10.0.0.5"), RuntimeUnavailableError),  # paramiko's error
        (AirflowNotFoundException("The conn_id `gate` isn't defined"), InvalidInputError),
    ],
)
def test_engine_that_cannot_be_reached_over_ssh_is_unavailable(error: Exception, expected: type[Exception]) -> None:
    with pytest.raises(expected, match="gate"):
        connect(Mock(side_effect=error), "gate")
