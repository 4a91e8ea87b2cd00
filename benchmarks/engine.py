"""The engine that benchmarks run their containers on."""

from __future__ import annotations

import os
from typing import Any


def connect() -> Any:
    """A client of the engine that ``$DOCKER_HOST`` names."""
    import docker

    # To start a container in a part of a processor that others keep busy takes a minute and more.
    return docker.APIClient(os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock", version="auto", timeout=300)
