"""The Docker engine of the benchmarks."""

from __future__ import annotations

import os
from typing import Any


def connect() -> Any:
    """Return a client of the engine at ``$DOCKER_HOST``."""
    import docker

    # Starting a container on a fraction of a busy processor can take more than a minute.
    return docker.APIClient(os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock", version="auto", timeout=300)
