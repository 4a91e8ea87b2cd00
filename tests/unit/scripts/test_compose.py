"""The settings of ``docker-compose.yaml``."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.request import proxy_bypass_environment

import yaml


def test_services_reach_each_other_without_the_proxy_of_the_client(project: Path) -> None:
    services = yaml.safe_load((project / "docker-compose.yaml").read_text())["services"]
    environments = {name: service["environment"] for name, service in services.items() if name != "postgres"}
    for environment in environments.values():
        hosts = {host for value in environment.values() for host in re.findall(r"://(?:.*@)?([\w.-]+)", value)}
        called = hosts & services.keys()
        assert "api-server" in called
        for variable in ("NO_PROXY", "no_proxy"):
            direct = environment[variable].replace("${NO_PROXY:-}", "")
            assert all(proxy_bypass_environment(host, {"no": direct}) for host in called | {"127.0.0.1"})
