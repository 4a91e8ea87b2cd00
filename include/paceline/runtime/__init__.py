"""Runtimes for training jobs: the protocols, and their implementations for containers, pods and local processes."""

from paceline.runtime._docker_options import DockerOptions
from paceline.runtime._kubernetes_options import KubernetesOptions
from paceline.runtime._process import ProcessRuntime
from paceline.runtime.base import (
    Job,
    JobFolder,
    JobSpec,
    JobStatus,
    PausableJob,
    Runtime,
    ScatteredJob,
    SupportsTeams,
    TeamNetwork,
    Usage,
)
from paceline.runtime.docker import DockerRuntime

__all__ = [
    "DockerOptions",
    "DockerRuntime",
    "Job",
    "JobFolder",
    "JobSpec",
    "JobStatus",
    "KubernetesOptions",
    "PausableJob",
    "ProcessRuntime",
    "Runtime",
    "ScatteredJob",
    "SupportsTeams",
    "TeamNetwork",
    "Usage",
]
