"""Translates the Docker client's errors into Paceline's errors. Used for every call to an engine."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from paceline.errors import JobLostError, PacelineError, RuntimeUnavailableError


@contextmanager
def engine_call(request: str) -> Iterator[None]:
    """Translate exceptions of the Docker client.

    Parameters
    ----------
    request:
        Phrase that names the request in error messages, such as "start the container".

    Raises
    ------
    RuntimeUnavailableError
        No connection, no answer in time, or a server error (5xx). A retry may succeed.
    JobLostError
        The container, or another object of the engine, does not exist (404).
    PacelineError
        The engine rejected the request.
    """
    import docker.errors
    import requests.exceptions
    import urllib3.exceptions

    try:
        yield
    except docker.errors.NotFound as error:
        raise JobLostError(f"could not {request}: {_explanation(error)}") from error
    except docker.errors.APIError as error:
        if error.is_server_error():
            raise RuntimeUnavailableError(
                f"could not {request}: the Docker engine failed: {_explanation(error)}"
            ) from error
        raise PacelineError(
            f"could not {request}: the Docker engine rejected the request: {_explanation(error)}"
        ) from error
    except (
        requests.exceptions.RequestException,
        urllib3.exceptions.HTTPError,
        ConnectionError,
        TimeoutError,
    ) as error:  # other OSErrors come from this machine, for example from a full disk
        raise RuntimeUnavailableError(f"could not {request}: the Docker engine is not responding: {error}") from error
    except _ssh_errors() as error:
        hint = "its SSH server may allow too few sessions for each connection (MaxSessions in sshd_config)"
        raise RuntimeUnavailableError(f"could not {request} over SSH: {error}; {hint}") from error
    except docker.errors.DockerException as error:  # the client could not connect: there is no engine at its address
        raise RuntimeUnavailableError(f"could not {request}: {error}") from error


def _ssh_errors() -> tuple[type[Exception], ...]:
    """Return the base class of errors of paramiko, if the client of an engine at ``ssh://`` has imported it."""
    paramiko = sys.modules.get("paramiko")
    return (paramiko.SSHException,) if paramiko else ()


def _explanation(error: Exception) -> str:
    return str(getattr(error, "explanation", None) or error)
