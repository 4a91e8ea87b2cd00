"""The private network of a team's containers; it exists as long as any container uses it.

The module ``docker`` creates the network, and ``docker_job`` removes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.errors import JobLostError, PacelineError
from paceline.runtime.docker_errors import engine_call

if TYPE_CHECKING:
    from docker import APIClient

LABEL = "paceline.network"
# Supported by all engines, unlike the gateway mode "isolated", which is the same for IPv4.
_NO_HOST_ADDRESS = {
    "com.docker.network.bridge.inhibit_ipv4": "true",
    "com.docker.network.enable_ipv6": "false",  # an engine's default may be true
}


def create(client: APIClient, name: str, *, external_access: bool = False) -> None:
    """Create the network if it does not exist. Without external access, its containers can only reach each other.

    Without external access, the engine's machine has no address in the network: at such an address, containers would
    reach every service that listens on all of the machine's addresses.

    Do not call this function concurrently: two calls could create two networks with the same name.
    """
    if not exists(client, name):
        with engine_call(f"create the network {name}"):
            client.create_network(
                name,
                driver="bridge",
                options=None if external_access else _NO_HOST_ADDRESS,
                internal=not external_access,
                check_duplicate=True,
                labels={LABEL: name},
            )


def remove_if_empty(client: APIClient, name: str) -> None:
    """Remove the network if it has no containers, running or not."""
    try:
        with engine_call(f"remove the network {name}"):
            # The engine would also remove a network whose containers have stopped, which then could not restart.
            if not client.containers(all=True, filters={"label": f"{LABEL}={name}"}):
                client.remove_network(name)
    except PacelineError:
        pass  # the network still has containers or no longer exists


def exists(client: APIClient, name: str) -> bool:
    """Return whether the engine has a network with this name."""
    try:
        with engine_call("look up the network"):
            client.inspect_network(name)
    except JobLostError:
        return False
    return True
