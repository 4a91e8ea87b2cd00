"""The constants of bottleneck-driven scaling, with the paper's values where it names one."""

from __future__ import annotations

from dataclasses import dataclass, fields

from paceline.errors import InvalidInputError

_WHOLE = {"stable_samples": 2, "network_samples": 2, "most_servers": 1, "most_workers": 2}


@dataclass(frozen=True)
class Options:
    """What :class:`~paceline.elastic.Scaling` decides by; Nearchus, section IV.

    Parameters
    ----------
    start_share:
        R_0: the part of the budget that a training starts on. The paper's evaluation has 15 vCPUs, of 100 and of 300.
    scale_up:
        R_up: how much is added to what a training has, when it uses all of that.
    job_efficiency:
        E_thd_job: a training that uses so much of its cores has no bottleneck.
    node_efficiency:
        E_thd_opt: a node that uses less of its cores gives some of them to others.
    stable_samples, stable_variation:
        N_comp and CV: speed and use of cores are stable when so many samples vary by less.
    network_samples, network_busy, network_share:
        N_net: the network of a parameter server is a bottleneck when of so many samples more than the share
        ``network_share`` is above ``network_busy``. The paper measures the use of the link's
        capacity; here it is the share of the time in which one of its directions is busy, as waiting for either is.
    improvement:
        A node more that makes the training faster by less is taken away again, as are more cores for a training that
        does not use all it has. The paper keeps such a node, and never gives such cores.
    least_cores:
        The fewest that a node is given.
    most_servers, most_workers:
        How many there may be.
    link_mbit_s:
        Capacity of each node's link in each direction, if it is known: without it, no network is recognised as the
        bottleneck.
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
    improvement: float = 0.02
    least_cores: float = 0.05
    most_servers: int = 4
    most_workers: int = 8
    link_mbit_s: float | None = None

    @property
    def fewest_cores(self) -> float:
        """That a training can do with: for one parameter server and two workers."""
        return 3 * self.least_cores

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in _WHOLE:
                least = _WHOLE[field.name]
                if not isinstance(value, int) or isinstance(value, bool) or value < least:
                    raise InvalidInputError(field.name, value, f"a whole number of at least {least}")
            elif field.name == "link_mbit_s" and value is None:
                continue
            elif field.name in ("scale_up", "least_cores", "link_mbit_s"):
                if not 0 < value < float("inf"):
                    raise InvalidInputError(field.name, value, "a number greater than 0")
            elif field.name in ("improvement", "network_share"):
                if not 0 <= value < 1:
                    raise InvalidInputError(field.name, value, "a share from 0 to below 1")
            elif not 0 < value <= 1:
                raise InvalidInputError(field.name, value, "a share greater than 0, up to 1")
