"""The private network of a training that is several containers: there while anybody is in it.

Used by ``docker``, which lets containers in, and by ``docker_job``, which takes them out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.errors import JobLostError, PacelineError
from paceline.runtime.docker_errors import engine_call

if TYPE_CHECKING:
    from docker import APIClient

LABEL = "paceline.network"


def make(client: APIClient, name: str, *, way_out: bool = False) -> None:
    """Make the network unless it is there. Without a way out, containers in it reach each other and nothing else.

    Only one may try: engines let two who come at the same time make two networks of one name.
    """
    if not is_there(client, name):
        with engine_call(f"make the network {name}"):
            client.create_network(
                name, driver="bridge", internal=not way_out, check_duplicate=True, labels={LABEL: name}
            )


def leave(client: APIClient, name: str) -> None:
    """Remove the network if nobody is in it any more."""
    try:
        with engine_call(f"remove the network {name}"):
            client.remove_network(name)
    except PacelineError:
        pass  # the others still need it, or it has gone


def is_there(client: APIClient, name: str) -> bool:
    """Whether there is a network of that name."""
    try:
        with engine_call("look for the network"):
            client.inspect_network(name)
    except JobLostError:
        return False
    return True
