"""Checks every engine of a fleet against the fleet's description, for ``paceline fleet check``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from paceline.errors import InvalidInputError
from paceline.fleet._machine import Fleet, Machine
from paceline.runtime.gpus import reported_by

_MAX_PARALLEL = 16


@dataclass(frozen=True)
class EngineCheck:
    """Result of checking one machine: engine version, cores, memory, and differences from the description."""

    machine: str
    version: str | None
    cores: int | None
    memory_gib: float | None
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether the machine matches its description."""
        return not self.problems


def check(fleet: Fleet, connect: Callable[[Machine], Any], image: str | None = None) -> Iterator[EngineCheck]:
    """Check the machines in parallel; yield results in the order of the fleet, the parameter server last.

    Parameters
    ----------
    fleet:
        The fleet to check.
    connect:
        Function that returns a client of a machine's engine (``docker.APIClient``).
    image:
        An image that every engine must have.
    """
    machines = list(fleet.machines)
    if fleet.parameter_server not in machines:
        machines.append(fleet.parameter_server)
    with ThreadPoolExecutor(_MAX_PARALLEL) as pool:
        yield from pool.map(lambda machine: _check_machine(machine, connect, image), machines)


def _check_machine(machine: Machine, connect: Callable[[Machine], Any], image: str | None) -> EngineCheck:
    try:
        client = connect(machine)
        version, info = client.version()["Version"], client.info()
        problems = list(_differences(machine, info))
        if image is not None and not client.images(name=image):
            problems.append(f"image {image} is missing")
    except InvalidInputError as error:
        return EngineCheck(machine.name, None, None, None, (str(error),))
    except Exception as error:  # the check reports any error
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return EngineCheck(machine.name, None, None, None, (f"its engine does not respond: {reason}",))
    return EngineCheck(machine.name, version, info["NCPU"], round(info["MemTotal"] / 2**30, 1), tuple(problems))


def _differences(machine: Machine, info: dict[str, Any]) -> Iterator[str]:
    if info["NCPU"] < machine.cores:
        yield f"has {info['NCPU']} cores, expected {machine.cores:g}"
    if info["MemTotal"] < 0.9 * machine.memory_gib * 2**30:  # the operating system reserves some memory
        yield f"has {info['MemTotal'] / 2**30:.1f} GiB of memory, expected {machine.memory_gib:g}"
    reported = reported_by(info)
    if reported and len(reported) < machine.gpus:
        yield f"its engine reports {len(reported)} of {machine.gpus} GPUs"
    if machine.gpus and not reported and not any("nvidia" in name for name in info.get("Runtimes", {})):
        yield f"its engine has no GPU runtime, expected {machine.gpus} GPUs"
