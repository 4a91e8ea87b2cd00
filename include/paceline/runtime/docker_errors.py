"""What went wrong between us and a Docker engine, in Paceline's errors. Used by everything that calls an engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from paceline.errors import JobLostError, PacelineError, RuntimeUnavailableError


@contextmanager
def engine_call(what: str) -> Iterator[None]:
    """Turn the client's exceptions into ours: away or failing, gone, or refused.

    Parameters
    ----------
    what:
        What was asked of the engine, as a phrase: "start the container".

    Raises
    ------
    RuntimeUnavailableError
        No connection, no answer in time, or an error of the engine itself (5xx). Trying later may help.
    JobLostError
        The engine answers that there is no such container (404).
    PacelineError
        The engine refused the request.
    """
    import docker.errors
    import requests.exceptions
    import urllib3.exceptions

    try:
        yield
    except docker.errors.NotFound as error:
        raise JobLostError(f"could not {what}: {_said(error)}") from error
    except docker.errors.APIError as error:
        if error.is_server_error():
            raise RuntimeUnavailableError(f"could not {what}: the Docker engine failed: {_said(error)}") from error
        raise PacelineError(f"could not {what}: the Docker engine refused: {_said(error)}") from error
    except (
        requests.exceptions.RequestException,
        urllib3.exceptions.HTTPError,
        ConnectionError,
        TimeoutError,
    ) as error:  # other OSErrors are of this machine: a full disk, say
        raise RuntimeUnavailableError(f"could not {what}: the Docker engine does not answer: {error}") from error
    except docker.errors.DockerException as error:  # the client could not be made: no engine behind its address
        raise RuntimeUnavailableError(f"could not {what}: {error}") from error


def _said(error: Exception) -> str:
    return str(getattr(error, "explanation", None) or error)
