"""Runtimes for training jobs: the protocol and its two implementations, containers and local processes."""

from paceline.runtime._process import ProcessRuntime
from paceline.runtime.base import (
    Job,
    JobSpec,
    JobStatus,
    Runtime,
    Usage,
)
from paceline.runtime.docker import DockerRuntime

__all__ = [
    "DockerRuntime",
    "Job",
    "JobSpec",
    "JobStatus",
    "ProcessRuntime",
    "Runtime",
    "Usage",
]
