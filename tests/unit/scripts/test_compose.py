"""The settings of ``docker-compose.yaml``."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.request import proxy_bypass

import pytest
import yaml


def test_services_reach_each_other_without_the_proxy_of_the_client(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    services = yaml.safe_load((project / "docker-compose.yaml").read_text())["services"]
    environments = {name: service["environment"] for name, service in services.items() if name != "postgres"}
    for environment in environments.values():
        hosts = {host for value in environment.values() for host in re.findall(r"://(?:.*@)?([\w.-]+)", value)}
        called = hosts & services.keys()
        assert "api-server" in called
        for variable in ("NO_PROXY", "no_proxy"):
            monkeypatch.setenv("no_proxy", environment[variable].replace("${NO_PROXY:-}", ""))
            assert all(proxy_bypass(host) for host in called | {"127.0.0.1"})
            assert not proxy_bypass("pypi.org")
