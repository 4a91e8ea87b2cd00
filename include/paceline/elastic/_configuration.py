"""The configuration of distributed training: parameter servers, workers, and the cores of each node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.errors import InvalidInputError

_FIRST_NODES = 3  # one parameter server and two workers, section IV


@dataclass(frozen=True)
class TeamConfiguration:
    """The distributed-training configuration (DT-config) of Nearchus, section IV, with the cores of each node.

    Parameters
    ----------
    servers:
        Cores of each parameter server.
    workers:
        Cores of each worker.

    Examples
    --------
    >>> first = TeamConfiguration.first(3.0)
    >>> first
    TeamConfiguration(servers=(1.0,), workers=(1.0, 1.0))
    >>> str(first.with_workers(4)), first.scaled(1.5).cores
    ('1 parameter server on 1 core, 4 workers on 2 cores', 4.5)
    """

    servers: tuple[float, ...]
    workers: tuple[float, ...]

    def __post_init__(self) -> None:
        for field, cores in (("servers", self.servers), ("workers", self.workers)):
            if not cores or not all(0 < one < float("inf") for one in cores):
                raise InvalidInputError(field, cores, "at least one finite number of cores, each greater than 0")

    @classmethod
    def first(cls, cores: float) -> TeamConfiguration:
        """Return one parameter server and two workers that share ``cores`` equally."""
        each = cores / _FIRST_NODES
        return cls((each,), (each, each))

    @property
    def cores(self) -> float:
        """Total cores of all nodes."""
        return sum(self.servers) + sum(self.workers)

    @property
    def nodes(self) -> dict[str, float]:
        """Cores by node name: ``ps-0``, ``ps-1``, …, ``worker-0``, …"""
        kinds = (("ps", self.servers), ("worker", self.workers))
        return {f"{kind}-{number}": one for kind, cores in kinds for number, one in enumerate(cores)}

    def scaled(self, factor: float) -> TeamConfiguration:
        """Return the configuration with the cores of every node multiplied by ``factor``."""
        return TeamConfiguration(*(tuple(one * factor for one in cores) for cores in (self.servers, self.workers)))

    def with_servers(self, number: int, min_cores: float = 0.0) -> TeamConfiguration:
        """Return the configuration with ``number`` parameter servers that share the present servers' cores equally.

        The workers release cores if each server would otherwise have less than ``min_cores``.
        """
        servers = _equal_cores(self.servers, number)
        missing = max(number * min_cores - sum(servers), 0.0)
        kept = 1 - missing / sum(self.workers)
        return TeamConfiguration(
            tuple(one + missing / number for one in servers), tuple(one * kept for one in self.workers)
        )

    def with_workers(self, number: int) -> TeamConfiguration:
        """Return the configuration with ``number`` workers that share the present workers' cores equally."""
        return TeamConfiguration(self.servers, _equal_cores(self.workers, number))

    def __str__(self) -> str:
        return f"{_describe_nodes(self.servers, 'parameter server')}, {_describe_nodes(self.workers, 'worker')}"


def is_worker(name: str) -> bool:
    """Return whether a node is a worker."""
    return name.startswith("worker-")


def _equal_cores(cores: Sequence[float], number: int) -> tuple[float, ...]:
    return (sum(cores) / number,) * number


def _describe_nodes(cores: Sequence[float], kind: str) -> str:
    return f"{quantity(len(cores), kind)} on {quantity(round(sum(cores), 2), 'core')}"


def quantity(number: float, noun: str) -> str:
    """Return a number with its noun in the singular or plural.

    >>> quantity(1, "worker"), quantity(2.5, "core")
    ('1 worker', '2.5 cores')
    """
    return f"{number:g} {noun}" + ("" if number == 1 else "s")
