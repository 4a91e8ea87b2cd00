"""A StatsD server for tests of Airflow's metrics."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture
def statsd(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A StatsD server that receives this process's Airflow metrics."""
    from airflow.sdk._shared.observability.metrics import stats
    from airflow.sdk._shared.observability.metrics.statsd_logger import get_statsd_logger
    from statsd import StatsClient

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(60)
        address: Any = {"host": "127.0.0.1", "port": server.getsockname()[1], "prefix": "airflow"}
        tagged = {"influxdb_tags_enabled": True, "statsd_influxdb_enabled": True}
        monkeypatch.setattr(stats, "_backend", get_statsd_logger(stats_class=StatsClient, **address, **tagged))
        yield server


def receive_metrics(statsd: socket.socket, number: int) -> list[str]:
    """Return the next metrics."""
    return [statsd.recv(1000).decode() for _ in range(number)]
