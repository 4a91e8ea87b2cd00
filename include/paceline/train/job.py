"""What a job and the runtime that starts it have agreed on: environment variables, folders, exit codes.

Training code and runtimes import it; the progress line is in ``progress``. Standard library only.
"""

from __future__ import annotations

import os
from pathlib import Path

# Absolute paths inside the job: the folder with the files named in JobSpec.inputs; what is collected when the job has
# ended; what survives a restart of the same job; and a JSON file {"devices": x}, which is rewritten atomically, and
# unset where a cgroup says it.
ENV_INPUT = "PACELINE_INPUT"
ENV_OUTPUT = "PACELINE_OUTPUT"
ENV_CHECKPOINT = "PACELINE_CHECKPOINT"
ENV_CONTROL = "PACELINE_CONTROL"
# Where a job is a worker of a training on several machines: ``host:port`` of its parameter server, the key that both
# prove to each other that they have, and the worker's name there.
ENV_SERVER = "PACELINE_SERVER"
ENV_SERVER_KEY = "PACELINE_SERVER_KEY"
ENV_WORKER = "PACELINE_WORKER"
# Where a worker trains to be measured: so many epochs, whatever its code asks for.
ENV_EPOCHS = "PACELINE_EPOCHS"
# ``lines``: progress goes out as what Paceline reads, also where it has not started the process.
ENV_PROGRESS = "PACELINE_PROGRESS"

EXIT_NOBODY = 4  # a parameter server whose workers have all gone
EXIT_LEFT_OUT = 5  # a worker that is left out after too many failures
EXIT_NO_SERVER = 6  # a worker that finds no server, or none any more
EXIT_SENT_AWAY = 7  # a worker that does not fit to the others
EXIT_BROKEN = 8  # a server that has lost a part of the state
EXIT_TERMINATED = 143  # ended by SIGTERM, as a shell says it: 128 + 15


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
