"""Samples since the last change of the configuration, and a check that they are stable enough for a decision."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev

from paceline.elastic._options import Team

_NEARLY_BUSY = 0.7  # fraction of ``Team.network_busy`` at which a link is close to being a bottleneck
# A link needs no more samples if its mean load plus this number of standard deviations is below the threshold. Smaller
# standard deviations count as _MIN_DEVIATION.
_DEVIATIONS, _MIN_DEVIATION = 3.0, 0.02


@dataclass(frozen=True)
class TeamSample:
    """A measurement of a team over one interval.

    Parameters
    ----------
    speed:
        Batches per second of all workers together.
    used:
        Cores in use by node name.
    network:
        Share of the time in which the link of each parameter server is busy, see ``link_busy_share``.
    """

    speed: float
    used: Mapping[str, float]
    network: Mapping[str, float]


def link_busy_share(received: float, sent: float) -> float:
    """Return the share of the time in which a link is busy, from the used share of its capacity in each direction.

    A worker first sends its change and then receives the state. Therefore, a few workers never fill either direction,
    even if they always wait for the link. With many workers, the busier direction alone is the limit.

    >>> round(link_busy_share(0.7, 0.7), 2), link_busy_share(1.0, 0.3)
    (0.91, 1.0)
    """
    return 1 - (1 - min(received, 1.0)) * (1 - min(sent, 1.0))


class Window:
    """Ring buffer of the newest samples of one configuration.

    Examples
    --------
    >>> window = Window(Team(stable_samples=2))
    >>> for speed in (5.0, 10.0, 10.1):
    ...     window.add(TeamSample(speed, {"ps-0": 0.5, "worker-0": 1.0}, {"ps-0": 0.95}))
    >>> window.stable, window.speed, window.used["ps-0"]
    (True, 10.05, 0.5)
    >>> window.saturated("ps-0")
    False
    """

    def __init__(self, options: Team) -> None:
        self._options = options
        self._samples: deque[TeamSample] = deque(maxlen=max(options.network_samples, options.stable_samples))

    def __len__(self) -> int:
        return len(self._samples)

    def clear(self) -> None:
        """Remove all samples after a change of the configuration."""
        self._samples.clear()

    def add(self, sample: TeamSample) -> None:
        """Add a sample."""
        self._samples.append(sample)

    @property
    def stable(self) -> bool:
        """Whether speed and cores in use have small coefficients of variation in recent samples (Nearchus, section IV).

        If single samples vary too much, the check uses the means of groups of consecutive samples.
        """
        return self._group_size is not None

    @property
    def speed(self) -> float:
        """Batches per second in recent samples."""
        return fmean(sample.speed for sample in self._recent_samples())

    @property
    def used(self) -> dict[str, float]:
        """Cores in use by node name, in recent samples."""
        newest = self._recent_samples()
        return {name: fmean(sample.used[name] for sample in newest) for name in newest[-1].used}

    @property
    def complete(self) -> bool:
        """Whether there are enough samples to exclude the network as the bottleneck."""
        if len(self._samples) < self._options.network_samples:
            return len(self._samples) >= self._options.stable_samples and all(map(self._is_clearly_free, self._servers))
        return True

    @property
    def busy(self) -> bool:
        """Whether the link of a parameter server has been close to being a bottleneck."""
        threshold = _NEARLY_BUSY * self._options.network_busy
        return any(load >= threshold for sample in self._samples for load in sample.network.values())

    def network(self, server: str) -> float:
        """Return the share of the time in which a parameter server's link is busy, in recent samples."""
        return fmean(sample.network[server] for sample in self._recent_samples())

    def saturated(self, server: str) -> bool:
        """Return whether a parameter server's link is a bottleneck: it is busy in too many samples."""
        busy = sum(sample.network[server] > self._options.network_busy for sample in self._samples)
        return busy > self._options.network_share * self._options.network_samples

    @property
    def _servers(self) -> list[str]:
        return list(self._samples[-1].network)

    def _is_clearly_free(self, server: str) -> bool:
        loads = [sample.network[server] for sample in self._samples]
        return fmean(loads) + _DEVIATIONS * max(pstdev(loads), _MIN_DEVIATION) < self._options.network_busy

    @property
    def _group_size(self) -> int | None:
        """The smallest number of consecutive samples whose means are stable; ``None`` if there is none."""
        wanted = self._options.stable_samples
        for size in range(1, len(self._samples) // wanted + 1):
            newest = list(self._samples)[-size * wanted :]
            series = [sample.speed for sample in newest], [sum(sample.used.values()) for sample in newest]
            if all(_variation_coefficient(_group_means(one, size)) < self._options.stable_variation for one in series):
                return size
        return None

    def _recent_samples(self) -> list[TeamSample]:
        return list(self._samples)[-self._options.stable_samples * (self._group_size or 1) :]


def _group_means(values: Sequence[float], size: int) -> list[float]:
    return [fmean(values[start : start + size]) for start in range(0, len(values), size)]


def _variation_coefficient(values: Sequence[float]) -> float:
    mean = fmean(values)
    return pstdev(values) / mean if mean > 0 else float("inf")
