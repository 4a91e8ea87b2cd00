"""Runtimes for training jobs: the protocol and its two implementations, containers and local processes."""

from paceline.runtime.base import (
    Job,
    JobSpec,
    JobStatus,
    Runtime,
    Usage,
)
from paceline.runtime.docker import DockerRuntime
from paceline.runtime.process import ProcessRuntime

__all__ = [
    "DockerRuntime",
    "Job",
    "JobSpec",
    "JobStatus",
    "ProcessRuntime",
    "Runtime",
    "Usage",
]
