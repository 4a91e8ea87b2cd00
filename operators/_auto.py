"""Chooses the runtime of a job with ``runtime="auto"``: a container if possible, else a local process."""

from __future__ import annotations

import os
from typing import Any

from paceline.airflow.runtimes import Docker, Process, RuntimeSettings
from paceline.errors import InvalidInputError, RuntimeUnavailableError
from paceline.runtime import JobSpec

from ._restrictions import fallback_obstacle, is_allowed

# The settings that "auto" chooses from. A job's specification always comes from the first: a local process ignores the
# image, the user and Docker's options, and the limits are the same.
CHOICES: tuple[RuntimeSettings, ...] = (Docker(), Process())


def choose(command: object, log: Any) -> RuntimeSettings:
    """Return the settings for a new job, and log the choice.

    Parameters
    ----------
    command:
        The job's ``command``, which needs a container: without an engine or the image, that is an error.
    log:
        The task's log.

    Raises
    ------
    InvalidInputError, RuntimeUnavailableError
        If no container can run, and the job must not run as a local process.
    """
    container, process = CHOICES
    if not is_allowed(container.name):
        if command is not None:
            log.error("A container is needed by: command")
            return container  # which `choose_runtime` rejects
        log.warning("Running as a local process: [paceline] allowed_runtimes does not name 'docker'")
        return process
    try:
        container.open().check(container.extend(JobSpec(name="check", command=["python"], devices=0.1)))
    except (RuntimeUnavailableError, InvalidInputError) as error:
        obstacle = "a container is needed by: command" if command is not None else fallback_obstacle()
        if obstacle:
            log.error("Not running as a local process: %s", obstacle)
            if isinstance(error, InvalidInputError):
                raise
            raise RuntimeUnavailableError(f"{error}; not running as a local process: {obstacle}") from error
        log.warning(
            "Running as a local process without a container's isolation: the job can read all files and secrets "
            "that the worker's user (uid %d) can read, and use the worker's network. The reason: %s",
            os.geteuid(),
            error,
        )
        return process
    log.info("Running in a container of image %s", container.image)
    return container
