"""Emulates a slow link by limiting the bandwidth of containers.

Used by tests and benchmarks of fleets, together with ``emulated_device``.
"""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.errors import PacelineError
from paceline.fleet import Fleet, Link
from paceline.runtime.docker_errors import engine_call

if TYPE_CHECKING:
    from docker import APIClient

_POLL_S = 0.2
_TRIES = 5  # a new container may not have a network yet; other containers never have one
# A burst is several full Ethernet frames. The kernel drops packets that wait longer than the latency.
_BURST, _LATENCY = "64kb", "200ms"


@contextlib.contextmanager
def emulate_links(client: APIClient, fleet: Fleet) -> Iterator[None]:
    """Limit the bandwidth of containers on the machines of a fleet that have a slow link.

    The control group of a container identifies the machine (see ``emulated_device``). The limit takes effect less
    than a second after the container has started.
    """
    machines = (*fleet.machines, fleet.parameter_server)
    links = {one.cgroup_parent: one.link for one in machines if one.cgroup_parent and one.link != Link()}
    if not links:
        yield
        return
    stop = threading.Event()
    watcher = threading.Thread(target=_limit_bandwidths, args=(client, links, stop), name="emulated-links", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        stop.set()
        watcher.join()


def _limit_bandwidths(client: APIClient, links: Mapping[str | None, Link], stop: threading.Event) -> None:
    tries: Counter[str] = Counter()
    while not stop.wait(_POLL_S):
        with contextlib.suppress(PacelineError), engine_call("list the running containers"):
            running = [str(one["Id"]) for one in client.containers()]
            for container in [one for one in running if tries[one] < _TRIES]:
                tries[container] += 1
                with contextlib.suppress(PacelineError), engine_call("inspect a container"):
                    link = links.get(client.inspect_container(container)["HostConfig"]["CgroupParent"])
                    if link is not None:
                        limit_bandwidth(client, container, link)
                    tries[container] = _TRIES


def limit_bandwidth(client: APIClient, container: str, link: Link) -> None:
    """Limit a running container's network to a link's bandwidth, in both directions, until the container ends.

    Install a token bucket filter on both ends of the container's virtual Ethernet pair. Ignore the link's delay,
    because few kernels have ``netem``.

    Parameters
    ----------
    client:
        Client of an engine on this machine.
    container:
        A running container with a network.
    link:
        The link to emulate.

    Raises
    ------
    PacelineError
        If this process is not root, or the kernel has no token buckets.

    Examples
    --------
    >>> limit_bandwidth(client, job.id, Link(mbit_per_s=10))  # doctest: +SKIP
    """
    with engine_call("inspect a container"):
        pid = int(client.inspect_container(container)["State"]["Pid"])
    if not pid:
        raise PacelineError(f"container {container[:12]} is not running, so it has no network to limit")
    inside = ["nsenter", "-t", str(pid), "-n"]
    host_interfaces = {}
    for path in Path("/sys/class/net").iterdir():
        with contextlib.suppress(OSError):  # not an interface, or an interface that is being removed
            host_interfaces[path.joinpath("ifindex").read_text().strip()] = path.name
    interfaces = 0
    for line in _run([*inside, "ip", "-o", "link"]).splitlines():
        # In "7: eth0@if8: <...>", interface 8 is the other end of the pair, outside the container.
        name, _, other = line.split(": ")[1].partition("@if")
        if other in host_interfaces:
            _set_bandwidth([*inside, "tc"], name, link)
            _set_bandwidth(["tc"], host_interfaces[other], link)
            interfaces += 1
    if not interfaces:
        raise PacelineError(f"container {container[:12]} has no network to limit")


def _set_bandwidth(tc: list[str], device: str, link: Link) -> None:
    rate = f"{round(link.mbit_per_s * 1000)}kbit"
    _run([*tc, "qdisc", "replace", "dev", device, "root", "tbf", "rate", rate, "burst", _BURST, "latency", _LATENCY])


def _run(command: list[str]) -> str:
    try:
        finished = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise PacelineError(f"{error.filename} is not installed; Debian: apt-get install iproute2 util-linux") from None
    if finished.returncode:
        raise PacelineError(f"{' '.join(command)}: {finished.stderr.strip()}")
    return finished.stdout
