"""Optimus (Peng et al., EuroSys 2018) as in Nearchus's comparison.

All nodes have the same number of cores. Optimus first runs the job in ten to twenty configurations and fits a speed
model to their speeds. Then it starts on one parameter server and two workers, and adds one node at a time, of the kind
with the larger predicted gain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.elastic import Step, Team, TeamConfiguration, TeamSample
from paceline.elastic.step import Kind
from paceline.elastic.window import Window

_MIN_GAIN = 1e-3  # relative; a node is not added for a smaller predicted gain


@dataclass(frozen=True)
class SpeedModel:
    """A model of asynchronous training in steps per second: ``w / (a + b w / p + c w + d p)``, coefficients at least 0.

    Examples
    --------
    >>> model = SpeedModel.fit([(1, 1), (1, 2), (2, 2), (2, 4), (1, 4)], [1.0, 1.9, 2.0, 3.8, 3.0])
    >>> round(model.speed(2, 3), 1)
    2.9
    """

    coefficients: tuple[float, ...]

    @classmethod
    def fit(cls, nodes: Sequence[tuple[int, int]], speeds: Sequence[float]) -> SpeedModel:
        """Fit the model by non-negative least squares to the speeds of pairs (parameter servers, workers)."""
        from scipy.optimize import nnls

        coefficients, _ = nnls(
            [_terms(servers, workers) for servers, workers in nodes],
            [workers / speed for (_, workers), speed in zip(nodes, speeds, strict=True)],
        )
        return cls(tuple(float(one) for one in coefficients))

    def speed(self, servers: int, workers: int) -> float:
        """Return the predicted speed in steps per second."""
        terms = _terms(servers, workers)
        return workers / max(sum(one * term for one, term in zip(self.coefficients, terms, strict=True)), 1e-12)


def _terms(servers: int, workers: int) -> tuple[float, ...]:
    return 1.0, workers / servers, float(workers), float(servers)


def profile_points(max_nodes: int, number: int) -> list[tuple[int, int]]:
    """Return ``number`` pairs (parameter servers, workers), spread over all pairs with at most ``max_nodes`` nodes.

    >>> profile_points(max_nodes=6, number=5)
    [(1, 1), (1, 5), (2, 3), (3, 2), (5, 1)]
    """
    all_points = [
        (servers, count - servers) for servers in range(1, max_nodes) for count in range(servers + 1, max_nodes + 1)
    ]
    number = min(number, len(all_points))
    return [all_points[round(place * (len(all_points) - 1) / max(number - 1, 1))] for place in range(number)]


class Optimus:
    """A decider like :class:`paceline.elastic.Scaling`, in which every step restarts all nodes.

    Parameters
    ----------
    budget:
        Cores in total.
    node_cores:
        Cores of each node.
    profiled:
        Number of configurations to profile.
    options:
        Options that define when measurements are stable.
    """

    def __init__(self, budget: float, node_cores: float, *, profiled: int = 10, options: Team | None = None) -> None:
        self.budget, self.settled = budget, False
        self._node_cores = node_cores
        self._max_nodes = int(budget / node_cores + 1e-9)
        self._unprofiled = profile_points(self._max_nodes, profiled)
        self._speeds: dict[tuple[int, int], float] = {}
        self._model: SpeedModel | None = None
        self._window = Window(options or Team())
        self._nodes = self._unprofiled.pop(0)

    @property
    def configuration(self) -> TeamConfiguration:
        """The target configuration."""
        servers, workers = self._nodes
        return TeamConfiguration((self._node_cores,) * servers, (self._node_cores,) * workers)

    @property
    def is_profiling(self) -> bool:
        """Whether profiling continues."""
        return self._model is None

    def decide(self, sample: TeamSample) -> Step | None:
        """Process a sample; return the next step, if any."""
        if self.settled:
            return None
        self._window.add(sample)
        if not self._window.stable:
            return None
        self._speeds[self._nodes] = self._window.speed
        if self._unprofiled:
            return self._step_to(self._unprofiled.pop(0), "profile")
        first = self._model is None
        self._model = SpeedModel.fit(list(self._speeds), list(self._speeds.values()))
        if first:
            return self._step_to((1, 2), "start after profiling")
        servers, workers = self._nodes
        now = self._model.speed(servers, workers)
        candidates = [(servers, workers + 1), (servers + 1, workers)]
        gain, best = max((self._model.speed(*one) / now - 1, one) for one in candidates)
        if gain < _MIN_GAIN or sum(best) > self._max_nodes:
            self.settled = True
            return Step("settled", self.configuration, "no further node increases the speed, or no cores are left")
        return self._step_to(best, f"one more node, predicted gain {100 * gain:.1f} %")

    def set_budget(self, budget: float) -> Step | None:
        """Ignore the new budget: the budget of Optimus is fixed."""
        return None

    def reject(self, reason: str) -> Step | None:
        """Ignore the rejection: Optimus has no alternative step."""
        return None

    def _step_to(self, nodes: tuple[int, int], reason: str) -> Step:
        kind: Kind = "server" if nodes[0] > self._nodes[0] else "worker"
        self._nodes = nodes
        self._window.clear()
        return Step(kind, self.configuration, reason)
