"""Where training jobs run: the protocol and its two implementations, containers and local processes."""

from paceline.runtime.base import (
    ENV_CHECKPOINT,
    ENV_CONTROL,
    ENV_INPUT,
    ENV_OUTPUT,
    Job,
    JobSpec,
    JobStatus,
    Runtime,
    Usage,
)
from paceline.runtime.docker import DockerRuntime
from paceline.runtime.process import ProcessRuntime

__all__ = [
    "ENV_CHECKPOINT",
    "ENV_CONTROL",
    "ENV_INPUT",
    "ENV_OUTPUT",
    "DockerRuntime",
    "Job",
    "JobSpec",
    "JobStatus",
    "ProcessRuntime",
    "Runtime",
    "Usage",
]
