"""``Team``: how a team of containers scales. The defaults are the paper's values where it states them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from paceline.errors import InvalidInputError

_INTEGER_MINIMA = {"stable_samples": 2, "network_samples": 2, "max_servers": 1, "max_workers": 2}


@dataclass(frozen=True)
class Team:
    """A team of containers that trains one job and scales within its cores: the constants of Nearchus, section IV.

    Parameters
    ----------
    start_share:
        R_0: the share of the budget on which a training job starts. The paper's evaluation uses 15 of 100 vCPUs, and 15
        of 300 vCPUs.
    scale_up:
        R_up: the relative increase in the allocation of a training job that uses all its cores.
    job_efficiency:
        E_thd_job: a training job that uses at least this share of its cores has no bottleneck.
    node_efficiency:
        E_thd_opt: a node that uses less than this share of its cores releases cores to other nodes.
    stable_samples, stable_variation:
        N_comp and CV: speed and cores in use are stable when their coefficients of variation over ``stable_samples``
        samples are below ``stable_variation``.
    network_samples, network_busy, network_share:
        N_net: the network of a parameter server is a bottleneck when, in more than ``network_share`` of this
        number of samples, it is busier than ``network_busy``. The paper measures the used share of the link's capacity.
        Paceline measures the share of the time in which either direction is busy, because a node waits for both
        directions.
    min_gain:
        The smallest relative gain in speed for which the search keeps added nodes, or cores that it added to a job with
        idle cores. The paper always keeps added nodes, and never adds cores to a job with idle cores.
    min_cores:
        Minimum number of cores of a node.
    max_servers, max_workers:
        Maximum number of parameter servers and of workers.
    link_mbit_s:
        Capacity of each node's link in each direction, in Mbit/s. Without this value, the network is never recognised
        as the bottleneck.
    """

    start_share: float = 0.25
    scale_up: float = 0.5
    job_efficiency: float = 0.95
    node_efficiency: float = 0.8
    stable_samples: int = 5
    stable_variation: float = 0.05
    network_samples: int = 30
    network_busy: float = 0.9
    network_share: float = 0.1
    min_gain: float = 0.02
    min_cores: float = 0.05
    max_servers: int = 4
    max_workers: int = 8
    link_mbit_s: float | None = None

    @property
    def initial_cores(self) -> float:
        """Minimum number of cores of a training job, for one parameter server and two workers."""
        return round(3 * self.min_cores, 9)  # as exact as allocations: 3 * 0.05 exceeds 0.15

    def check_budget(self, budget: float) -> None:
        """Raise InvalidInputError if a training job cannot start with ``budget`` cores."""
        fewest = self.initial_cores
        if not fewest <= budget < float("inf"):
            accepted = f"a number of cores of at least {fewest:g}, for one parameter server and two workers"
            raise InvalidInputError("max_devices", budget, accepted)

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in _INTEGER_MINIMA:
                minimum = _INTEGER_MINIMA[field.name]
                if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
                    raise InvalidInputError(field.name, value, f"a whole number of at least {minimum}")
            elif field.name == "link_mbit_s" and value is None:
                continue
            elif field.name in ("scale_up", "min_cores", "link_mbit_s"):
                if not _is_number(value) or not 0 < value < float("inf"):
                    raise InvalidInputError(field.name, value, "a number greater than 0")
            elif field.name in ("min_gain", "network_share"):
                if not _is_number(value) or not 0 <= value < 1:
                    raise InvalidInputError(field.name, value, "a fraction of at least 0 and below 1")
            elif not _is_number(value) or not 0 < value <= 1:
                raise InvalidInputError(field.name, value, "a fraction greater than 0 and at most 1")

    @classmethod
    def read(cls, field: str, value: object) -> Team:
        """Return a team, or one with the options of a mapping; raise InvalidInputError for other values of ``field``.

        >>> Team.read("team", {"max_workers": 3}).max_workers
        3
        >>> Team.read("team", {"max_workers": 1})
        Traceback (most recent call last):
        paceline.errors.InvalidInputError: team['max_workers']: got 1, expected a whole number of at least 2
        """
        if isinstance(value, cls):
            return value
        names = [one.name for one in fields(cls)]
        if not isinstance(value, Mapping):
            raise InvalidInputError(field, value, f"paceline.elastic.Team(...), or a dict of {', '.join(names)}")
        for name in value:
            if name not in names:
                raise InvalidInputError(field, name, f"the names {', '.join(names)}")
        try:
            return cls(**value)
        except InvalidInputError as error:
            raise InvalidInputError(f"{field}[{error.field!r}]", error.value, error.accepted) from None


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
