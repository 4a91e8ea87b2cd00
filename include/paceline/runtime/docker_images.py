"""The image of a container: whether the engine has it, and its pull before a start. Used by ``DockerRuntime``."""

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

# What a registry refuses, it refuses again. Engines call some of this a failure of their own (HTTP 500), or tell it in
# the middle of a pull; their other failures then are of the network or of the registry.
_FINAL = re.compile(
    r"not found|does not exist|manifest unknown|no matching manifest|denied|unauthorized|authentication required",
    re.IGNORECASE,
)
# Images that a check had to pull, by the client that pulled them, until a start has used them. The start may be another
# runtime's: an operator that chooses between runtimes checks with one and starts with the next.
_just_pulled: WeakKeyDictionary[APIClient, set[str]] = WeakKeyDictionary()


class Images:
    """Looks for images, and pulls each of them before its first start.

    Parameters
    ----------
    pull:
        Pull images, also those that the engine has. Without it an image that the engine lacks is an error.
    """

    def __init__(self, *, pull: bool) -> None:
        self._pull = pull
        self._pulled: set[str] = set()
        self._lock = threading.Lock()  # starts in several threads pull an image once

    def fetch_missing(self, client: APIClient, image: str) -> None:
        """Pull an image that the engine lacks, as nothing less can tell that it can be had; without ``pull``, raise."""
        if not self._pull:
            accepted = (
                f"an image that the engine has (`docker pull {image}` or `docker build -t {image} .` gets it), "
                "or pull=True"
            )
            raise InvalidInputError("image", image, accepted)
        with self._lock:
            if not has_image(client, image):
                pull(client, image)
                _just_pulled.setdefault(client, set()).add(image)

    def prepare(self, client: APIClient, image: str) -> None:
        """Pull the image if this object pulls and has not done so: the containers of a runtime have the same image."""
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
    """Return whether the engine has an image of that name."""
    try:
        with engine_call("look for the image"):
            client.inspect_image(image)  # type: ignore[no-untyped-call]
    except JobLostError:
        return False
    return True


def pull(client: APIClient, image: str) -> None:
    """Pull an image from its registry.

    Raises
    ------
    InvalidInputError
        The registry does not have the image, or does not let this client have it.
    RuntimeUnavailableError
        The engine or the registry fails or does not answer; another try may succeed.
    """
    log.info("Pulling image %s", image)
    try:
        with engine_call(f"pull {image}"):
            for said in client.pull(image, stream=True, decode=True):
                if "error" in said:
                    raise RuntimeUnavailableError(f"could not pull {image}: {said['error']}")
    except PacelineError as error:
        if isinstance(error, RuntimeUnavailableError) and not _FINAL.search(str(error)):
            raise
        raise InvalidInputError("image", image, f"an image that can be pulled ({error})") from error
