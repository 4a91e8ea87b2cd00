"""Measures machines at the most informative points: points spread over the grid, then points with large variance."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from paceline.errors import InvalidInputError
from paceline.profiles._functions import FUNCTIONS, Function, execution
from paceline.profiles._points import Axes, Point, choose_more, first_points
from paceline.profiles.learn import MIN_POINTS
from paceline.profiles.neighbours import Load

if TYPE_CHECKING:
    import pandas as pd

    from paceline.fleet import Machine

# Axes: CPU and memory load on a machine, batch size, number of workers, load on the parameter server.
CPU, MEMORY, BATCH, WORKERS, SERVER = "stress_cpu", "stress_memory", "batch_size", "workers", "server_stress"
# In each round, each batch size needs a new training job, whose start takes as long as several measurements.
_MAX_ROUNDS, _MIN_POINTS_PER_TRAINING = 3, 6


class BenchProtocol(Protocol):
    """The methods of :class:`~paceline.profiles.bench.Bench` that a survey calls."""

    def train(self, batch: dict[str, int]) -> None:
        """Start a training job with a batch size for each machine name."""

    def measure(self, loads: dict[str, Load], *, active: Sequence[str], server: Load | None) -> list[dict[str, Any]]:
        """Measure one point and return one row per active machine."""


def default_axes(workers: int, batch_sizes: Sequence[int] = (4, 8, 16, 32), *, fill_memory: bool = True) -> Axes:
    """Return the default grid for ``workers`` machines, with or without loads on their memory.

    >>> len(default_axes(workers=3).grid)
    360
    """
    return Axes(
        {
            CPU: (0.0, 0.25, 0.5, 0.75, 1.0),
            MEMORY: (0.0, 0.25, 0.5) if fill_memory else (0.0,),
            BATCH: batch_sizes,
            WORKERS: tuple(range(1, workers + 1)),
            SERVER: (0.0, 0.5),
        }
    )


def check_points(points: int, machines: int) -> None:
    """Raise ``InvalidInputError`` if ``points`` is too small to learn from the points of each machine."""
    # Several machines train together, so that 16 measurements give each of them enough rows; see `_next_active`.
    minimum = MIN_POINTS * min(machines, 2)
    if points < minimum:
        raise InvalidInputError("points", points, f"at least {minimum} (machines to measure: {machines})")


class Survey:
    """Measures the machines of a fleet simultaneously, with a different load on each machine.

    Parameters
    ----------
    bench:
        Bench that measures each point.
    machines:
        Machines to measure; machines of one kind contribute to the same profile.
    axes:
        Grid of points, see :func:`default_axes`.
    seed:
        Seed of random choices.
    on_rows:
        Function to call with the rows of each measurement.
    """

    def __init__(
        self,
        bench: BenchProtocol,
        machines: Sequence[Machine],
        axes: Axes,
        *,
        seed: int = 0,
        on_rows: Callable[[list[dict[str, Any]]], None] = lambda rows: None,
    ) -> None:
        workers = max(axes.values[WORKERS])
        if workers > len(machines):
            raise InvalidInputError("axes.workers", workers, f"at most {len(machines)}, the number of machines")
        self._bench = bench
        self._machines = list(machines)
        self._axes = axes
        self._seed = seed
        self._on_rows = on_rows
        self._rng = np.random.default_rng(seed)
        self._trained, self._led = Counter[str](), Counter[str]()
        self.rows: list[dict[str, Any]] = []
        """All measured rows; the column ``held_out`` marks rows for testing."""

    def run(self, points: int, held_out: int = 0, repeats: int = 1) -> pd.DataFrame:
        """Measure ``points`` points for learning, and ``held_out`` random points for testing.

        The survey measures each held-out point ``repeats`` times, in random order, to reduce the measurement noise and
        to show its size. Each of up to three rounds starts a training job per batch size; a single batch size needs one
        job. All other parameters change while that job is suspended.

        Raises
        ------
        InvalidInputError
            If ``points`` is too small to learn from the points of each machine.
        """
        import pandas as pd

        check_points(points, len(self._machines))
        sizes = [int(size) for size in self._axes.values[BATCH]]
        rounds = min(max(points // (len(sizes) * _MIN_POINTS_PER_TRAINING), 1), _MAX_ROUNDS)
        jobs, left = rounds * len(sizes), points
        training: dict[str, int] | None = None
        for number in range(jobs):
            batch = {one.name: sizes[(number + index) % len(sizes)] for index, one in enumerate(self._machines)}
            count = _part_size(points, number, jobs)
            chosen = self._select_points(batch, count, first=number < len(sizes))
            held_out_points = [self._random_point(batch) for _ in range(_part_size(held_out, number, jobs))]
            if not chosen and not held_out_points:
                continue
            if batch != training:  # with a single batch size, one job serves all rounds
                self._bench.train(batch)
                training = batch
            order = []
            for point in chosen:
                left -= 1
                order.append((point, False, self._next_active(point, left)))
            order += [(point, True, self._next_active(point, None)) for point in held_out_points] * repeats
            for index in self._order_of([point[active[0]] for point, _, active in order]):
                self._measure(*order[index])
        measured: pd.DataFrame = pd.DataFrame(self.rows)
        return measured

    def _order_of(self, points: Sequence[Point]) -> list[int]:
        """Return the order of the measurements: by memory load, whose change takes longest, and otherwise random.

        In random order, a gradual change of a machine's speed affects learning points and held-out points alike.
        """
        levels = self._rng.permutation(self._axes.values[MEMORY]).tolist()
        shuffled: list[int] = self._rng.permutation(len(points)).tolist()
        return sorted(shuffled, key=lambda index: levels.index(points[index][MEMORY]))

    def _next_active(self, by_machine: dict[str, Point], left: int | None) -> list[str]:
        """Return the machines that train in a measurement; the first one's point determines the common parameters.

        They are those that have trained least so far, so that there are about equally many rows of each machine. With
        the number of measurements ``left`` after this one, they are as many as each machine needs for its rows.
        """
        names = sorted(by_machine, key=lambda name: (self._trained[name], self._led[name]))
        workers = int(by_machine[names[0]][WORKERS])
        self._led[names[0]] += 1
        if left is None:
            return names[:workers]
        missing = sum(max(MIN_POINTS - self._trained[name], 0) for name in names)
        active = names[: max(workers, missing - left * len(names))]
        self._trained.update(active)
        return active

    def _measure(self, by_machine: dict[str, Point], held_out: bool, active: list[str]) -> None:
        loads = {name: Load(point[CPU], point[MEMORY]) for name, point in by_machine.items()}
        rows = self._bench.measure(loads, active=active, server=Load(by_machine[active[0]][SERVER]))
        for row in rows:
            row["held_out"] = held_out
        self.rows += rows
        self._on_rows(rows)

    def _select_points(self, batch: dict[str, int], count: int, *, first: bool) -> list[dict[str, Point]]:
        """Return ``count`` measurements, each as a mapping of machine names to points of about the same memory load."""
        choose = self._space_filling_points if first else self._uncertain_points
        lists = {
            machine.name: sorted(choose(position, machine, batch[machine.name], count), key=lambda one: one[MEMORY])
            for position, machine in enumerate(self._machines)
        }
        return [{name: points[index] for name, points in lists.items()} for index in range(count)]

    def _random_point(self, batch: dict[str, int]) -> dict[str, Point]:
        values = self._axes.values
        return {
            name: {axis: float(size if axis == BATCH else self._rng.choice(values[axis])) for axis in values}
            for name, size in batch.items()
        }

    def _space_filling_points(self, position: int, machine: Machine, size: int, count: int) -> list[Point]:
        if not count:
            return []
        other_axes = Axes({axis: values for axis, values in self._axes.values.items() if axis != BATCH})
        sizes = list(self._axes.values[BATCH])
        total = min(count * len(sizes), len(other_axes.grid))
        points = first_points(other_axes, total, seed=self._seed + position)
        # Distribute the points among the batch sizes. The seed differs between machines.
        own = [{**point, BATCH: float(size)} for point in points[sizes.index(size) % total :: len(sizes)]]
        return [own[index % len(own)] for index in range(count)]

    def _uncertain_points(self, position: int, machine: Machine, size: int, count: int) -> list[Point]:
        import pandas as pd

        rows = [row for row in self.rows if row["kind"] == machine.kind and not row["held_out"]]
        functions = self._learned_functions(machine)
        chosen = choose_more(
            self._axes,
            pd.DataFrame(rows),
            functions,
            count,
            seed=self._seed + position,
            is_allowed=lambda point: point[BATCH] == size,
        )
        return chosen + [self._random_point({machine.name: size})[machine.name] for _ in range(count - len(chosen))]

    def _learned_functions(self, machine: Machine) -> list[Function]:
        return [*FUNCTIONS[:2], *(execution(app.name) for app in machine.background)]


def _part_size(whole: int, number: int, parts: int) -> int:
    """Return the size of the ``number``-th of ``parts`` nearly equal parts."""
    return math.floor(whole * (number + 1) / parts) - math.floor(whole * number / parts)
