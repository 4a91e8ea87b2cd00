"""The engine that benchmarks run their containers on."""

from __future__ import annotations

import os
from typing import Any


def connect() -> Any:
    """A client of the engine that ``$DOCKER_HOST`` names."""
    import docker

    # To start a container on a part of a processor that others keep busy has taken more than a minute.
    return docker.APIClient(os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock", version="auto", timeout=300)
