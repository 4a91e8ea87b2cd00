"""Measures machines at the points that tell most: some that fill the space, then those the models are unsure of."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from paceline.errors import InvalidInputError
from paceline.profiles.functions import FUNCTIONS, Function, execution
from paceline.profiles.learn import LEAST_POINTS
from paceline.profiles.neighbours import Load
from paceline.profiles.points import Axes, Point, choose_more, first_points

if TYPE_CHECKING:
    import pandas as pd

    from paceline.fleet import Machine

# What is varied: load on a machine, its batch size, how many train, load on the parameter server.
CPU, MEMORY, BATCH, WORKERS, SERVER = "stress_cpu", "stress_memory", "batch_size", "workers", "server_stress"
# A training has to be begun anew for each batch size of a round, which takes as long as several measurements.
_MOST_ROUNDS, _LEAST_IN_TRAINING = 3, 6


class Measures(Protocol):
    """What a survey asks of a :class:`~paceline.profiles.bench.Bench`."""

    def train(self, batch: dict[str, int]) -> None:
        """Begin a training with these batch sizes."""

    def measure(self, loads: dict[str, Load], *, active: Sequence[str], server: Load | None) -> list[dict[str, Any]]:
        """Measure a point."""


def default_axes(workers: int, batch_sizes: Sequence[int] = (4, 8, 16, 32)) -> Axes:
    """The points that are worth a look where ``workers`` machines are at hand.

    >>> len(default_axes(workers=3).grid)
    360
    """
    return Axes(
        {
            CPU: (0.0, 0.25, 0.5, 0.75, 1.0),
            MEMORY: (0.0, 0.25, 0.5),
            BATCH: batch_sizes,
            WORKERS: tuple(range(1, workers + 1)),
            SERVER: (0.0, 0.5),
        }
    )


class Survey:
    """Measures a fleet's machines, all of them at once, each at its own load.

    Parameters
    ----------
    bench:
        Where it is measured.
    machines:
        The machines; those of one kind add to the same profile.
    axes:
        What is varied, see :func:`default_axes`.
    seed:
        Of what is drawn.
    on_rows:
        Told the rows of every measurement.
    """

    def __init__(
        self,
        bench: Measures,
        machines: Sequence[Machine],
        axes: Axes,
        *,
        seed: int = 0,
        on_rows: Callable[[list[dict[str, Any]]], None] = lambda rows: None,
    ) -> None:
        most = max(axes.values[WORKERS])
        if most > len(machines):
            raise InvalidInputError("axes.workers", most, f"at most {len(machines)}, the number of machines")
        self._bench = bench
        self._machines = list(machines)
        self._axes = axes
        self._seed = seed
        self._on_rows = on_rows
        self._draw = np.random.default_rng(seed)
        self._turn = 0
        self.rows: list[dict[str, Any]] = []
        """What was measured; ``held_out`` says which rows are for testing what was learned from the others."""

    def run(self, points: int, held_out: int = 0, repeats: int = 1) -> pd.DataFrame:
        """Measure so many points to learn from, and so many drawn at random to test what was learned.

        Those to test with are measured ``repeats`` times each, not one after the other: what a point gives is known
        better then, and how much of an error is the measurement's own. A training is begun for each batch size in each
        of up to three rounds; the rest is varied while it stands still.

        Raises
        ------
        InvalidInputError
            For so few points that a machine would have too few to learn from.
        """
        import pandas as pd

        least = LEAST_POINTS * len(self._machines)
        if points < least:
            accepted = f"at least {least}: {LEAST_POINTS} for each of {len(self._machines)} machines"
            raise InvalidInputError("points", points, accepted)
        sizes = [int(size) for size in self._axes.values[BATCH]]
        rounds = min(max(points // (len(sizes) * _LEAST_IN_TRAINING), 1), _MOST_ROUNDS)
        trainings = rounds * len(sizes)
        for number in range(trainings):
            batch = {machine.name: sizes[(number + place) % len(sizes)] for place, machine in enumerate(self._machines)}
            count = _part(points, number, trainings)
            chosen = self._chosen(batch, count, first=number < len(sizes))
            drawn = [self._drawn(batch) for _ in range(_part(held_out, number, trainings))]
            if not chosen and not drawn:
                continue
            self._bench.train(batch)
            # Interleaved, so that what changes with time changes for both.
            order = [(point, False, self._leader()) for point in chosen]
            order += [(point, True, self._leader()) for point in drawn] * repeats
            for index in self._draw.permutation(len(order)):
                self._measure(*order[index])
        measured: pd.DataFrame = pd.DataFrame(self.rows)
        return measured

    def _leader(self) -> str:
        """Whose point says what all have in common; each in its turn."""
        self._turn += 1
        return self._machines[self._turn % len(self._machines)].name

    def _measure(self, by_machine: dict[str, Point], held_out: bool, leader: str) -> None:
        point = by_machine[leader]
        names = [machine.name for machine in self._machines]
        start = names.index(leader)
        active = [names[(start + step) % len(names)] for step in range(int(point[WORKERS]))]
        loads = {name: Load(by_machine[name][CPU], by_machine[name][MEMORY]) for name in names}
        rows = self._bench.measure(loads, active=active, server=Load(point[SERVER]))
        for row in rows:
            row["held_out"] = held_out
        self.rows += rows
        self._on_rows(rows)

    def _chosen(self, batch: dict[str, int], count: int, *, first: bool) -> list[dict[str, Point]]:
        """For each measurement, each machine's point; who leads has its say on what they have in common."""
        lists = {
            machine.name: (self._filling if first else self._unsure)(place, machine, batch[machine.name], count)
            for place, machine in enumerate(self._machines)
        }
        return [{name: points[index] for name, points in lists.items()} for index in range(count)]

    def _drawn(self, batch: dict[str, int]) -> dict[str, Point]:
        values = self._axes.values
        return {
            name: {axis: float(size if axis == BATCH else self._draw.choice(values[axis])) for axis in values}
            for name, size in batch.items()
        }

    def _filling(self, place: int, machine: Machine, size: int, count: int) -> list[Point]:
        if not count:
            return []
        rest = Axes({axis: values for axis, values in self._axes.values.items() if axis != BATCH})
        sizes = list(self._axes.values[BATCH])
        wanted = min(count * len(sizes), len(rest.grid))
        points = first_points(rest, wanted, seed=self._seed + place)
        # Each batch size gets its own part of the points, and each machine another.
        mine = [{**point, BATCH: float(size)} for point in points[sizes.index(size) :: len(sizes)]]
        return [mine[index % len(mine)] for index in range(count)]

    def _unsure(self, place: int, machine: Machine, size: int, count: int) -> list[Point]:
        import pandas as pd

        rows = [row for row in self.rows if row["kind"] == machine.kind and not row["held_out"]]
        functions = self._functions(machine)
        chosen = choose_more(
            self._axes,
            pd.DataFrame(rows),
            functions,
            count,
            seed=self._seed + place,
            among=lambda point: point[BATCH] == size,
        )
        return chosen + [self._drawn({machine.name: size})[machine.name] for _ in range(count - len(chosen))]

    def _functions(self, machine: Machine) -> list[Function]:
        return [*FUNCTIONS[:2], *(execution(app.name) for app in machine.background)]


def _part(whole: int, number: int, parts: int) -> int:
    """The ``number``-th of so many nearly equal parts."""
    return math.floor(whole * (number + 1) / parts) - math.floor(whole * number / parts)
