"""What a distributed training consists of: parameter servers, workers, and the cores of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.errors import InvalidInputError

_FIRST_NODES = 3  # one parameter server and two workers, section IV


@dataclass(frozen=True)
class TeamConfiguration:
    """The DT-config of Nearchus, section IV, with the cores of every single node.

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
    >>> str(first.with_workers(4)), first.times(1.5).cores
    ('1 parameter server on 1 core, 4 workers on 2 cores', 4.5)
    """

    servers: tuple[float, ...]
    workers: tuple[float, ...]

    def __post_init__(self) -> None:
        for field, cores in (("servers", self.servers), ("workers", self.workers)):
            if not cores or not all(0 < one < float("inf") for one in cores):
                raise InvalidInputError(field, cores, "the cores of at least one, each greater than 0")

    @classmethod
    def first(cls, cores: float) -> TeamConfiguration:
        """One parameter server and two workers on ``cores``, equally."""
        each = cores / _FIRST_NODES
        return cls((each,), (each, each))

    @property
    def cores(self) -> float:
        """Of all nodes together."""
        return sum(self.servers) + sum(self.workers)

    @property
    def nodes(self) -> dict[str, float]:
        """Name to cores: ``ps-0``, ``ps-1``, …, ``worker-0``, …"""
        named = (("ps", self.servers), ("worker", self.workers))
        return {f"{kind}-{number}": one for kind, cores in named for number, one in enumerate(cores)}

    def times(self, factor: float) -> TeamConfiguration:
        """Every node with so many times its cores."""
        return TeamConfiguration(*(tuple(one * factor for one in cores) for cores in (self.servers, self.workers)))

    def with_servers(self, number: int, least_cores: float = 0.0) -> TeamConfiguration:
        """So many parameter servers, on the same cores in all, which they share equally.

        Where each would have less than ``least_cores``, workers give what is missing.
        """
        servers = _equally(self.servers, number)
        missing = max(number * least_cores - sum(servers), 0.0)
        left = 1 - missing / sum(self.workers)
        return TeamConfiguration(
            tuple(one + missing / number for one in servers), tuple(one * left for one in self.workers)
        )

    def with_workers(self, number: int) -> TeamConfiguration:
        """So many workers, on the same cores in all, which they share equally."""
        return TeamConfiguration(self.servers, _equally(self.workers, number))

    def __str__(self) -> str:
        return f"{_words(self.servers, 'parameter server')}, {_words(self.workers, 'worker')}"


def is_worker(name: str) -> bool:
    """Whether a node trains."""
    return name.startswith("worker-")


def _equally(cores: Sequence[float], number: int) -> tuple[float, ...]:
    return (sum(cores) / number,) * number


def _words(cores: Sequence[float], what: str) -> str:
    return f"{count(len(cores), what)} on {count(round(sum(cores), 2), 'core')}"


def count(number: float, what: str) -> str:
    """A number of things, in words.

    >>> count(1, "worker"), count(2.5, "core")
    ('1 worker', '2.5 cores')
    """
    return f"{number:g} {what}" + ("" if number == 1 else "s")
