"""A slow connection in place of a quick one: what a container sends and gets is held back to a link's bandwidth.

Used by tests and benchmarks of fleets, beside ``emulated``.
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
from paceline.fleet.machine import Fleet, Link
from paceline.runtime.docker_errors import engine_call

if TYPE_CHECKING:
    from docker import APIClient

_LOOK_S = 0.2
_TRIES = 5  # a container may have no network, or none yet
# A burst is what leaves at once: some full Ethernet frames; what has waited for longer is dropped, and sent again.
_BURST, _WAIT = "64kb", "200ms"


@contextlib.contextmanager
def emulate_links(client: APIClient, fleet: Fleet) -> Iterator[None]:
    """Hold back whatever containers are started on machines of a fleet that are described with a slow link.

    Machines are recognised by their control groups (``emulated_device.emulate``). A container is limited within a
    fraction of a second after its start; until then it has the network of this machine.
    """
    machines = (*fleet.machines, fleet.parameter_server)
    links = {one.cgroup_parent: one.link for one in machines if one.cgroup_parent and one.link != Link()}
    if not links:
        yield
        return
    over = threading.Event()
    watcher = threading.Thread(target=_watch, args=(client, links, over), name="emulated-links", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _watch(client: APIClient, links: Mapping[str | None, Link], over: threading.Event) -> None:
    tries: Counter[str] = Counter()
    while not over.wait(_LOOK_S):
        with contextlib.suppress(PacelineError), engine_call("see which containers run"):
            running = [str(one["Id"]) for one in client.containers()]
            for container in [one for one in running if tries[one] < _TRIES]:
                tries[container] += 1
                with contextlib.suppress(PacelineError), engine_call("ask where a container belongs"):
                    link = links.get(client.inspect_container(container)["HostConfig"]["CgroupParent"])
                    if link is not None:
                        narrow(client, container, link)
                    tries[container] = _TRIES


def narrow(client: APIClient, container: str, link: Link) -> None:
    """Hold a running container's network to a link's bandwidth, in both directions, until the container ends.

    A token bucket of the kernel's traffic control at each end of the container's cable. The link's delay is left out:
    few kernels have what that takes (``netem``).

    Parameters
    ----------
    client:
        An engine on this machine.
    container:
        A container that has a network.
    link:
        The connection that it is to have.

    Raises
    ------
    PacelineError
        Where this is not root, or the kernel has no token buckets.

    Examples
    --------
    >>> narrow(client, job.id, Link(mbit_per_s=10))  # doctest: +SKIP
    """
    with engine_call("ask for the container's process"):
        pid = int(client.inspect_container(container)["State"]["Pid"])
    if not pid:
        raise PacelineError(f"container {container[:12]} does not run: it has no network to be held back")
    inside = ["nsenter", "-t", str(pid), "-n"]
    here = {}
    for path in Path("/sys/class/net").iterdir():
        with contextlib.suppress(OSError):  # no device, or one that goes away just now
            here[path.joinpath("ifindex").read_text().strip()] = path.name
    cables = 0
    for line in _run([*inside, "ip", "-o", "link"]).splitlines():
        # "7: eth0@if8: <...>": number 8 is the other end, outside of the container.
        name, _, other = line.split(": ")[1].partition("@if")
        if other in here:
            _hold_back([*inside, "tc"], name, link)
            _hold_back(["tc"], here[other], link)
            cables += 1
    if not cables:
        raise PacelineError(f"container {container[:12]} has no network to be held back")


def _hold_back(tc: list[str], device: str, link: Link) -> None:
    rate = f"{round(link.mbit_per_s * 1000)}kbit"
    _run([*tc, "qdisc", "replace", "dev", device, "root", "tbf", "rate", rate, "burst", _BURST, "latency", _WAIT])


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise PacelineError(f"{error.filename} is not here; on Debian: apt-get install iproute2 util-linux") from None
    if done.returncode:
        raise PacelineError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
