"""Measures a training, and what runs beside it, at stress points: section IV of Deep-Edge.

A bench has a parameter server and some machines. The training is the real one, its script unchanged; between two
measurements it stands still, so that a point costs seconds.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from paceline.errors import InvalidInputError, PacelineError
from paceline.fleet import Machine
from paceline.profiles.neighbours import IMAGE, Load, Neighbours
from paceline.profiles.readings import Gauge, Seen, percentile, watch
from paceline.profiles.rehearsal import LEAST_BATCHES, Rehearsal, TrainingSpec
from paceline.runtime import DockerRuntime

_NEWS_S = 180.0
_EXECUTION_S = 30.0  # an application's execution that takes longer is not waited for
_FULLEST = 0.9  # load takes no more of a machine's memory: a profile must not kill what runs there


@dataclass(frozen=True)
class Timing:
    """How long to look, in seconds: after a change, at a machine without training, and with."""

    settle_s: float = 0.5
    before_s: float = 2.0
    training_s: float = 4.0
    every_s: float = 1.0


class Bench:
    """Machines on which a training is measured.

    Parameters
    ----------
    machines:
        The machines.
    server:
        The machine of the parameter server; with an ``address`` where they have several engines.
    training:
        What is trained.
    runtimes:
        Machine name to its engine.
    gauges:
        Machine name to what reads its usage.
    image:
        Image with stress-ng.
    timing:
        How long to look.
    reference:
        Does the same work each time where a machine is and returns how long it took, for machines whose own speed
        changes, such as parts of a virtual one; asked for each machine several times a second while it trains. The mean
        goes into each row as ``reference_s``.
    labels:
        Labels for every container.

    Examples
    --------
    >>> with Bench(machines, server, training, runtimes, gauges) as bench:  # doctest: +SKIP
    ...     bench.train({"gate-1": 16, "gate-2": 32})
    ...     rows = bench.measure({"gate-1": Load(cpu=0.5)}, active=["gate-1", "gate-2"])
    """

    def __init__(
        self,
        machines: Sequence[Machine],
        server: Machine,
        training: TrainingSpec,
        runtimes: Mapping[str, DockerRuntime],
        gauges: Mapping[str, Gauge],
        *,
        image: str = IMAGE,
        timing: Timing | None = None,
        reference: Callable[[str], float] | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        self._machines = {machine.name: machine for machine in machines}
        if len(self._machines) < len(machines) or server.name in self._machines:
            names = [*(machine.name for machine in machines), server.name]
            raise InvalidInputError("machines", names, "a name for each, and the server apart from them")
        self._server_machine = server
        self._gauges = gauges
        self._timing = timing or Timing()
        self._reference = reference
        self._run = f"profile-{uuid.uuid4().hex[:8]}"
        self._neighbours = {
            name: Neighbours(runtimes[name], machine, f"{self._run}-{name}", image, labels)
            for name, machine in {**self._machines, server.name: server}.items()
        }
        self._batch: dict[str, int] = {}
        self._memory: dict[str, float] = {}  # share in use where a training runs without load
        self._rehearsal = Rehearsal(self._run, self._machines, server, training, runtimes, labels)

    def __enter__(self) -> Bench:
        try:
            for neighbours in self._neighbours.values():
                neighbours.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def train(self, batch: Mapping[str, int]) -> None:
        """Begin a training with these batch sizes, and let it stand still; the one before is ended."""
        self._rehearsal.end()
        self._set({}, Load())
        self._batch = dict(batch)
        self._rehearsal.begin({name: {"samples": 1, "batch_size": size} for name, size in batch.items()})
        seen, _ = self._watch(list(self._neighbours), 0.0)
        self._memory = {name: one.most_memory for name, one in seen.items()}
        for trainer in self._rehearsal.trainers.values():
            trainer.job.pause()

    def measure(
        self, loads: Mapping[str, Load], *, active: Sequence[str], server: Load | None = None
    ) -> list[dict[str, Any]]:
        """Measure one point: with load on some machines, ``active`` ones train.

        Parameters
        ----------
        loads:
            Machine to its load; the others have none.
        active:
            Who trains; the others stand still.
        server:
            Load on the parameter server's machine.

        Returns
        -------
        list
            A row for each active machine, with the columns that ``paceline.profiles.learn`` wants: shares from 0 to 1,
            seconds. ``stress_cpu``, ``stress_memory`` and ``server_stress`` are the loads; ``alone_s.APP`` is
            what an application's executions took before the training went on.
        """
        timing = self._timing
        server, trainers = server or Load(), self._rehearsal.trainers
        self._set(loads, server)
        names = [*active, self._server_machine.name]
        before, alone = self._look(names, timing.before_s)
        for name in active:
            trainers[name].now()
            trainers[name].job.unpause()
        try:
            give_up_s = time.monotonic() + _NEWS_S
            for name in active:
                # The first word after the standstill is of before it, and the batch after that has it in its time.
                told = trainers[name].wait_for_news(give_up_s)
                trainers[name].wait_for(told.spent["samples"] + 2 * self._batch[name], give_up_s)
            self._take_times()
            first = {name: trainers[name].now() for name in active}
            during, reference_s = self._watch(names, timing.training_s, self._reference)
            times = self._executions(active)
            for name in active:
                wanted = first[name].spent["samples"] + LEAST_BATCHES * self._batch[name]
                trainers[name].wait_for(wanted, give_up_s)
            last = {name: trainers[name].now() for name in active}
        finally:
            for name in active:
                with contextlib.suppress(PacelineError):  # one that has ended is told of by what ended this
                    trainers[name].job.pause()
        spent = {
            name: {key: last[name].spent[key] - first[name].spent[key] for key in last[name].spent} for name in active
        }
        compute_s = {name: spent[name]["compute_s"] / spent[name]["samples"] for name in active}
        pushes_per_s = sum(1 / (self._batch[name] * compute_s[name]) for name in active)
        rows = []
        for name in active:
            load, machine = loads.get(name, Load()), self._machines[name]
            # The training that stands still holds memory: it is not of the state before.
            paused = trainers[name].memory_bytes / (machine.memory_gib * 2**30)
            row = {
                "machine": name,
                "kind": machine.kind,
                "stress_cpu": load.cpu,
                "stress_memory": load.memory,
                "server_stress": server.cpu,
                "batch_size": float(self._batch[name]),
                "workers": float(len(active)),
                "pushes_per_s": pushes_per_s,
                "server_cpu": before[self._server_machine.name].mean_cpu,
                "cpu": before[name].mean_cpu,
                "gpu": 0.0,
                "memory": max(before[name].most_memory - paused, 0.0),
                "new_cpu": during[name].high_cpu,
                "new_gpu": 0.0,
                "new_memory": during[name].most_memory,
                "compute_s": compute_s[name],
                "update_s": spent[name]["update_s"] / spent[name]["batches"],
            }
            if reference_s:
                row["reference_s"] = reference_s[name]
            for app, executions in times[name].items():
                row[f"execution_s.{app}"] = percentile(executions)
                row[f"alone_s.{app}"] = percentile(alone[name].get(app, []))
            rows.append(row)
        return rows

    def look(
        self, loads: Mapping[str, Load], *, server: Load | None = None
    ) -> tuple[dict[str, Seen], dict[str, dict[str, list[float]]]]:
        """How busy every machine is under these loads without a training, and what each application's executions take.

        Returns
        -------
        tuple
            Machine name to what was seen, the parameter server's included; machine name to application to seconds.
        """
        self._rehearsal.end()
        self._memory = {}
        self._set(loads, server or Load())
        return self._look(list(self._neighbours), self._timing.training_s)

    def epoch(
        self,
        plan: Mapping[str, Mapping[str, float]],
        loads: Mapping[str, Load],
        *,
        samples: int,
        server: Load | None = None,
        epochs: float = 2.0,
        fixed_parts: bool = False,
    ) -> tuple[float, dict[str, dict[str, list[float]]]]:
        """Train by a schedule under these loads, and measure how long an epoch takes.

        Parameters
        ----------
        plan:
            Machine name to ``samples`` and ``batch_size``, as a schedule has it.
        loads, server:
            As for ``measure``.
        samples:
            How many there are.
        epochs:
            How long to measure.
        fixed_parts:
            Whether nobody takes over from who is slower.

        Returns
        -------
        tuple
            Seconds for an epoch; machine name to application to seconds of its executions meanwhile.
        """
        self._set({}, Load())  # a training begins quicker on machines at rest
        self._rehearsal.begin(plan, fixed_parts=fixed_parts)
        seen, _ = self._watch(list(self._neighbours), 0.0)
        self._memory = {name: one.most_memory for name, one in seen.items()}
        self._set(loads, server or Load())
        self._take_times()
        first = self._rehearsal.wait_for(0, _NEWS_S)
        last = self._rehearsal.wait_for(first.done + epochs * samples, _NEWS_S + 60 * epochs)
        times = {name: self._neighbours[name].take_times() for name in plan}
        self._rehearsal.end()
        return (last.monotonic_s - first.monotonic_s) * samples / (last.done - first.done), times

    def _set(self, loads: Mapping[str, Load], server: Load) -> None:
        """Let there be these loads, on all machines at the same time: a slow one takes seconds to fill its memory."""

        def set_one(name: str) -> None:
            load = server if name == self._server_machine.name else loads.get(name, Load())
            room = max(_FULLEST - self._memory.get(name, 0.0), 0.0)
            self._neighbours[name].set(Load(load.cpu, min(load.memory, room)))

        with ThreadPoolExecutor(len(self._neighbours)) as pool:
            try:
                list(pool.map(set_one, self._neighbours))
            except BaseException:
                self.close()  # else the others would be waited for
                raise
        time.sleep(self._timing.settle_s)

    def _look(self, names: Sequence[str], for_s: float) -> tuple[dict[str, Seen], dict[str, dict[str, list[float]]]]:
        self._take_times()
        seen, _ = self._watch(names, for_s)
        return seen, {name: self._neighbours[name].take_times() for name in names}

    def _take_times(self) -> None:
        """Forget what the applications' executions took up to now."""
        for neighbours in self._neighbours.values():
            neighbours.take_times()

    def _executions(self, active: Sequence[str]) -> dict[str, dict[str, list[float]]]:
        """What the applications' executions took; waits for one of each, else the slow ones would be missing."""
        times: dict[str, dict[str, list[float]]] = {name: {} for name in active}
        give_up_s = time.monotonic() + _EXECUTION_S
        while True:
            for name in active:
                for app, seconds in self._neighbours[name].take_times().items():
                    times[name].setdefault(app, []).extend(seconds)
            missing = [name for name in active if len(times[name]) < len(self._machines[name].background)]
            if not missing or time.monotonic() > give_up_s:
                return times
            time.sleep(0.1)

    def close(self) -> None:
        """Remove every container, all at the same time: whoever ends this may not have long."""
        with ThreadPoolExecutor(len(self._neighbours) + 1) as pool:
            ends = [self._rehearsal.close, *(neighbours.close for neighbours in self._neighbours.values())]
            for end in [pool.submit(end) for end in ends]:
                end.result()

    def _watch(
        self, names: Sequence[str], for_s: float, reference: Callable[[str], float] | None = None
    ) -> tuple[dict[str, Seen], dict[str, float]]:
        machines = {**self._machines, self._server_machine.name: self._server_machine}
        chosen = [machines[name] for name in names]
        return watch(chosen, self._gauges, for_s, every_s=self._timing.every_s, reference=reference)
