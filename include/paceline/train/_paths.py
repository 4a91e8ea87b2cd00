"""Where a job finds its input and leaves its output, and how it ends when asked to.

Called by training code; the names are used here and there.
"""

from __future__ import annotations

import os
from pathlib import Path

# The runtimes set these; paceline.runtime.base names the same ones on the other side.
ENV_INPUT = "PACELINE_INPUT"
ENV_OUTPUT = "PACELINE_OUTPUT"
ENV_CHECKPOINT = "PACELINE_CHECKPOINT"
ENV_CONTROL = "PACELINE_CONTROL"
# Where a job is a worker of a training on several machines: ``host:port`` of its parameter server, the key that the
# server asks for, and the worker's name there.
ENV_SERVER = "PACELINE_SERVER"
ENV_SERVER_KEY = "PACELINE_SERVER_KEY"
ENV_WORKER = "PACELINE_WORKER"
# Where a worker trains to be measured: so many epochs, whatever its code asks for.
ENV_EPOCHS = "PACELINE_EPOCHS"
# ``lines``: progress goes out as what Paceline reads, also where it has not started the process.
ENV_PROGRESS = "PACELINE_PROGRESS"
# What a shell says of a process ended by SIGTERM: 128 + 15. So does a job.
EXIT_TERMINATED = 143


def input_dir() -> Path:
    """Return the folder with the job's input files; the current folder outside of a job."""
    return Path(os.environ.get(ENV_INPUT) or Path.cwd())


def output_dir() -> Path:
    """Return the folder whose content is collected when the job has ended; the current folder outside of a job."""
    return Path(os.environ.get(ENV_OUTPUT) or Path.cwd())


def run_by_paceline() -> bool:
    """Whether a Paceline runtime started this process."""
    return bool(os.environ.get(ENV_OUTPUT))


def is_worker() -> bool:
    """Whether this process trains for a parameter server."""
    return bool(os.environ.get(ENV_SERVER))
