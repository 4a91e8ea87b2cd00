"""The Docker engine and the cluster of the benchmarks."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.runtime import Runtime


def connect() -> Any:
    """Return a client of the engine at ``$DOCKER_HOST``."""
    import docker

    # Starting a container on a fraction of a busy processor can take more than a minute.
    return docker.APIClient(os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock", version="auto", timeout=300)


def runtimes(*, cluster: bool) -> list[Runtime]:
    """Return the runtime of containers if ``DOCKER_HOST`` names an engine and, with ``cluster``, that of pods."""
    from paceline.runtime import DockerRuntime

    found: list[Runtime] = [DockerRuntime(connect)] if os.environ.get("DOCKER_HOST") or not cluster else []
    if cluster:
        from kubernetes.config import new_client_from_config

        from paceline.runtime.kubernetes import KubernetesRuntime

        found.append(KubernetesRuntime(new_client_from_config))
    return found
