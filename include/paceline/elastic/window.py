"""What a training's nodes have used since its last change, and whether that is stable enough to decide by."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev

from paceline.elastic.options import Options

_NEAR = 0.7
# What varies so little that it stays below a threshold needs no more samples: so many deviations, of at least so much.
_SURE, _TREMBLE = 3.0, 0.02


@dataclass(frozen=True)
class TeamSample:
    """What was measured over one interval.

    Parameters
    ----------
    speed:
        Steps (batches) a second, of all workers together.
    used:
        Node to cores used.
    network:
        Parameter server to the share of the time in which its link is busy, in one direction or the other: see
        ``either``.
    """

    speed: float
    used: Mapping[str, float]
    network: Mapping[str, float]


def either(one_way: float, other_way: float) -> float:
    """The share of the time in which a link is busy, by the shares of its capacity in use in each direction.

    A worker sends its change, then it gets the state: few workers never fill a direction, though each of them waits for
    the link all the time. With so many of them that nobody waits for the other direction, it is the busier one.

    >>> round(either(0.7, 0.7), 2), either(1.0, 0.3)
    (0.91, 1.0)
    """
    return 1 - (1 - min(one_way, 1.0)) * (1 - min(other_way, 1.0))


class Window:
    """The newest samples of one configuration; a ring buffer as long as decisions look back.

    Examples
    --------
    >>> window = Window(Options(stable_samples=2))
    >>> for speed in (5.0, 10.0, 10.1):
    ...     window.add(TeamSample(speed, {"ps-0": 0.5, "worker-0": 1.0}, {"ps-0": 0.95}))
    >>> window.stable, window.speed, window.used["ps-0"]
    (True, 10.05, 0.5)
    >>> window.saturated("ps-0")
    False
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._samples: deque[TeamSample] = deque(maxlen=max(options.network_samples, options.stable_samples))

    def __len__(self) -> int:
        return len(self._samples)

    def clear(self) -> None:
        """Forget all: the configuration has changed."""
        self._samples.clear()

    def add(self, sample: TeamSample) -> None:
        """Take in what was measured."""
        self._samples.append(sample)

    @property
    def stable(self) -> bool:
        """Whether neither speed nor use of cores has varied notably lately: coefficients of variation, section IV.

        Where single samples vary too much to tell, the means of several in a row count as one.
        """
        return self._together is not None

    @property
    def speed(self) -> float:
        """Steps a second, lately."""
        return fmean(sample.speed for sample in self._newest())

    @property
    def used(self) -> dict[str, float]:
        """Node to cores used, lately."""
        newest = self._newest()
        return {name: fmean(sample.used[name] for sample in newest) for name in newest[-1].used}

    @property
    def complete(self) -> bool:
        """Whether enough has been seen to say that no network is the bottleneck."""
        if len(self._samples) < self._options.network_samples:
            return len(self._samples) >= self._options.stable_samples and all(map(self._stays_free, self._servers))
        return True

    @property
    def busy(self) -> bool:
        """Whether the link of a parameter server has come near to being a bottleneck."""
        near = _NEAR * self._options.network_busy
        return any(load >= near for sample in self._samples for load in sample.network.values())

    def network(self, server: str) -> float:
        """The share of a parameter server's link that is in use, lately."""
        return fmean(sample.network[server] for sample in self._newest())

    def saturated(self, server: str) -> bool:
        """Whether a parameter server's link is a bottleneck: more than so many of the samples are busy."""
        busy = sum(sample.network[server] > self._options.network_busy for sample in self._samples)
        return busy > self._options.network_share * self._options.network_samples

    @property
    def _servers(self) -> list[str]:
        return list(self._samples[-1].network)

    def _stays_free(self, server: str) -> bool:
        loads = [sample.network[server] for sample in self._samples]
        return fmean(loads) + _SURE * max(pstdev(loads), _TREMBLE) < self._options.network_busy

    @property
    def _together(self) -> int | None:
        """How many samples in a row have to count as one for the newest ones to be stable; the fewest."""
        wanted = self._options.stable_samples
        for together in range(1, len(self._samples) // wanted + 1):
            newest = list(self._samples)[-together * wanted :]
            series = [sample.speed for sample in newest], [sum(sample.used.values()) for sample in newest]
            if all(_variation(_means(one, together)) < self._options.stable_variation for one in series):
                return together
        return None

    def _newest(self) -> list[TeamSample]:
        return list(self._samples)[-self._options.stable_samples * (self._together or 1) :]


def _means(values: Sequence[float], together: int) -> list[float]:
    return [fmean(values[place : place + together]) for place in range(0, len(values), together)]


def _variation(values: Sequence[float]) -> float:
    mean = fmean(values)
    return pstdev(values) / mean if mean > 0 else float("inf")
