"""Looks up and pulls container images before a job starts. Used by ``DockerRuntime``."""

from __future__ import annotations

import logging
import re
import threading
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from paceline.errors import InvalidInputError, JobLostError, PacelineError, RuntimeUnavailableError
from paceline.runtime.docker_errors import engine_call

if TYPE_CHECKING:
    from docker import APIClient

log = logging.getLogger(__name__)

# Messages of permanent pull errors. Engines report some of these errors as server errors (HTTP 500) or during the pull.
# After any other pull error, a retry may succeed.
_PERMANENT_ERROR = re.compile(
    r"not found|does not exist|manifest unknown|no matching manifest|denied|unauthorized|authentication required",
    re.IGNORECASE,
)
# Per client, the images that ``check`` has pulled and ``start`` has not used yet. An operator that chooses between
# runtimes calls ``check`` and ``start`` on different runtime objects.
_just_pulled: WeakKeyDictionary[APIClient, set[str]] = WeakKeyDictionary()


class Images:
    """Looks up container images, and pulls each image before its first use.

    Parameters
    ----------
    pull:
        Whether to pull images, even if the engine already has them. Otherwise, a missing image is an error.
    """

    def __init__(self, *, pull: bool) -> None:
        self._pull = pull
        self._pulled: set[str] = set()
        self._lock = threading.Lock()  # several threads may start jobs; only one pulls the image

    def pull_missing(self, client: APIClient, image: str) -> None:
        """Pull an image that the engine lacks, to check that the registry has it; raise if pulls are disabled."""
        if not self._pull:
            commands = f"run `docker pull {image}` or `docker build -t {image} .`"
            accepted = f"an image that the engine has ({commands}), or pull=True"
            raise InvalidInputError("image", image, accepted)
        with self._lock:
            if not has_image(client, image):
                pull(client, image)
                _just_pulled.setdefault(client, set()).add(image)

    def pull_once(self, client: APIClient, image: str) -> None:
        """Pull the image on its first use if pulls are enabled; all containers of a runtime then use the same image."""
        if not self._pull:
            return
        with self._lock:
            if image in self._pulled:
                return
            if image in _just_pulled.get(client, ()):
                _just_pulled[client].discard(image)
            else:
                pull(client, image)
            self._pulled.add(image)


def has_image(client: APIClient, image: str) -> bool:
    """Return whether the engine has an image with this name."""
    try:
        with engine_call("look up the image"):
            client.inspect_image(image)  # type: ignore[no-untyped-call]
    except JobLostError:
        return False
    return True


def pull(client: APIClient, image: str) -> None:
    """Pull an image from its registry.

    Raises
    ------
    InvalidInputError
        The registry does not have the image or denies access to it.
    RuntimeUnavailableError
        The engine or the registry fails or does not respond; a retry may succeed.
    """
    log.info("Pulling image %s", image)
    try:
        with engine_call(f"pull {image}"):
            for event in client.pull(image, stream=True, decode=True):
                if "error" in event:
                    raise RuntimeUnavailableError(f"could not pull {image}: {event['error']}")
    except PacelineError as error:
        if isinstance(error, RuntimeUnavailableError) and not _PERMANENT_ERROR.search(str(error)):
            raise
        raise InvalidInputError("image", image, f"an image that can be pulled ({error})") from error
