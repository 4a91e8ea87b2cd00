"""Measures how a training job and its neighbours perform under load (section IV of Deep-Edge).

The bench runs the real training script and suspends it between measurements, so that a measurement takes seconds.
"""

from __future__ import annotations

import contextlib
import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from paceline.errors import InvalidInputError, PacelineError
from paceline.fleet import Machine
from paceline.profiles.measured_training import MIN_BATCHES, MeasuredTraining, TrainingSpec
from paceline.profiles.neighbours import IMAGE, Load, Neighbours
from paceline.profiles.readings import Gauge, Utilization, measure_utilization, percentile
from paceline.runtime import SupportsTeams

log = logging.getLogger(__name__)

_REPORT_TIMEOUT_S = 180.0
_EXECUTION_TIMEOUT_S = 30.0  # maximum wait until an application finishes an execution
_MAX_MEMORY = 0.9  # maximum share of memory in use, so that the system kills no application


@dataclass(frozen=True)
class Timing:
    """Seconds to wait after a change of load, to measure before and during training, and between readings of usage.

    ``report_s`` is the maximum wait for the first report of an application.
    """

    settle_s: float = 0.5
    before_s: float = 2.0
    training_s: float = 4.0
    every_s: float = 1.0
    report_s: float = 60.0


class Bench:
    """Measures a training job and its neighbours on several machines under load.

    Parameters
    ----------
    machines:
        Machines that train.
    server:
        Machine of the parameter server; needs an ``address`` if the machines have several engines.
    training:
        Script, image and files of the training job.
    runtimes:
        Mapping of machine names to runtimes.
    gauges:
        Mapping of machine names to gauges, which read the machines' usage.
    image:
        Image with stress-ng.
    timing:
        Durations of the measurement.
    reference:
        Function that does a constant amount of work on the named machine and returns its duration in seconds. Needed
        for machines of variable speed, such as emulated machines. The bench calls the function several times per second
        for each machine during training and stores the mean in each row as ``reference_s``.
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
        runtimes: Mapping[str, SupportsTeams],
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
            raise InvalidInputError("machines", names, "unique names, and for the server a name that no worker has")
        self._server_machine = server
        self._gauges = gauges
        self._timing = timing or Timing()
        self._reference = reference
        self._prefix = f"profile-{uuid.uuid4().hex[:8]}"
        self._neighbours = {
            name: Neighbours(
                runtimes[name],
                machine,
                f"{self._prefix}-{name}",
                image,
                labels,
                timeout_s=self._timing.report_s,
                memory_bytes=training.memory_bytes,
            )
            for name, machine in {**self._machines, server.name: server}.items()
        }
        self._batch: dict[str, int] = {}
        self._memory: dict[str, float] = {}  # share of memory in use during training without artificial load
        self._measured_training = MeasuredTraining(self._prefix, self._machines, server, training, runtimes, labels)

    def __enter__(self) -> Bench:
        with ThreadPoolExecutor(len(self._neighbours)) as pool:
            try:
                for neighbours in self._neighbours.values():
                    neighbours.check_image()
                log.info("The neighbours start on %s", ", ".join(self._machines))
                for started in [pool.submit(neighbours.start) for neighbours in self._neighbours.values()]:
                    started.result()
            except BaseException:
                self.close()  # do not wait for the other machines
                raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def train(self, batch: Mapping[str, int]) -> None:
        """End the previous training job, start a new job with these batch sizes, and suspend the new job."""
        self._measured_training.end()
        self._set_loads({}, Load())
        self._batch = dict(batch)
        self._measured_training.start({name: {"samples": 1, "batch_size": size} for name, size in batch.items()})
        utilization, _ = self._utilization(list(self._neighbours), 0.0)
        self._memory = {name: one.max_memory for name, one in utilization.items()}
        for job in self._measured_training.jobs.values():
            job.job.pause()

    def measure(
        self, loads: Mapping[str, Load], *, active: Sequence[str], server: Load | None = None
    ) -> list[dict[str, Any]]:
        """Measure the training job and the applications at one point of the grid.

        Parameters
        ----------
        loads:
            Mapping of machine names to loads; other machines have no load.
        active:
            Names of the machines that train; training on other machines is suspended.
        server:
            Load on the parameter server's machine.

        Returns
        -------
        list
            One row per active machine: the features and targets of ``FUNCTIONS`` (utilization from 0 to 1, times in
            seconds), the artificial load ``stress_cpu``, ``stress_memory`` and ``server_stress`` (from 0 to 1), and
            ``alone_s.APP``, an application's execution time without training in seconds.
        """
        timing = self._timing
        server, jobs = server or Load(), self._measured_training.jobs
        self._set_loads(loads, server)
        names = [*active, self._server_machine.name]
        before, alone = self._observe(names, timing.before_s)
        for name in active:
            jobs[name].latest_report()
            jobs[name].job.unpause()
        try:
            give_up_s = time.monotonic() + _REPORT_TIMEOUT_S
            for name in active:
                # Skip the report from before the suspension, and the batch whose duration includes the suspension.
                report = jobs[name].wait_for_report(give_up_s)
                jobs[name].wait_for_samples(report.spent["samples"] + 2 * self._batch[name], give_up_s)
            self._discard_execution_times()
            first = {name: jobs[name].latest_report() for name in active}
            during, reference_s = self._utilization(names, timing.training_s, self._reference)
            times = self._execution_times(active)
            for name in active:
                target = first[name].spent["samples"] + MIN_BATCHES * self._batch[name]
                jobs[name].wait_for_samples(target, give_up_s)
            last = {name: jobs[name].latest_report() for name in active}
        finally:
            for name in active:
                with contextlib.suppress(PacelineError):  # if the job has ended, the current exception reports it
                    jobs[name].job.pause()
        spent = {
            name: {key: last[name].spent[key] - first[name].spent[key] for key in last[name].spent} for name in active
        }
        compute_s = {name: spent[name]["compute_s"] / spent[name]["samples"] for name in active}
        pushes_per_s = sum(1 / (self._batch[name] * compute_s[name]) for name in active)
        rows = []
        for name in active:
            load, machine = loads.get(name, Load()), self._machines[name]
            # The memory in use before training includes the suspended job, so subtract the job's memory.
            paused = jobs[name].memory_bytes / (machine.memory_gib * 2**30)
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
                "memory": max(before[name].max_memory - paused, 0.0),
                "new_cpu": during[name].p95_cpu,
                "new_gpu": 0.0,
                "new_memory": during[name].max_memory,
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

    def measure_without_training(
        self, loads: Mapping[str, Load], *, server: Load | None = None
    ) -> tuple[dict[str, Utilization], dict[str, dict[str, list[float]]]]:
        """Measure all machines' utilization and all applications' execution times under load, without training.

        Returns
        -------
        tuple
            Utilization of each machine and the server; execution times in seconds for each machine and application.
        """
        self._measured_training.end()
        self._memory = {}
        self._set_loads(loads, server or Load())
        return self._observe(list(self._neighbours), self._timing.training_s)

    def measure_epoch(
        self,
        plan: Mapping[str, Mapping[str, float]],
        loads: Mapping[str, Load],
        *,
        samples: int,
        server: Load | None = None,
        epochs: float = 2.0,
        fixed_shards: bool = False,
    ) -> tuple[float, dict[str, dict[str, list[float]]]]:
        """Train under load according to a schedule, and measure the duration of an epoch.

        Parameters
        ----------
        plan:
            Mapping of machine names to ``samples`` and ``batch_size``, as in a schedule.
        loads, server:
            As for ``measure``.
        samples:
            Number of samples in an epoch.
        epochs:
            Number of epochs to measure.
        fixed_shards:
            If true, faster machines do not take over samples of slower machines.

        Returns
        -------
        tuple
            Duration of an epoch in seconds; execution times in seconds for each machine and application.
        """
        self._set_loads({}, Load())  # a job starts faster on idle machines
        self._measured_training.start(plan, fixed_shards=fixed_shards)
        utilization, _ = self._utilization(list(self._neighbours), 0.0)
        self._memory = {name: one.max_memory for name, one in utilization.items()}
        self._set_loads(loads, server or Load())
        self._discard_execution_times()
        first = self._measured_training.wait_for_samples(0, _REPORT_TIMEOUT_S)
        last = self._measured_training.wait_for_samples(first.done + epochs * samples, _REPORT_TIMEOUT_S + 60 * epochs)
        times = {name: self._neighbours[name].take_execution_times() for name in plan}
        self._measured_training.end()
        return (last.monotonic_s - first.monotonic_s) * samples / (last.done - first.done), times

    def _set_loads(self, loads: Mapping[str, Load], server: Load) -> None:
        """Set the loads of all machines in parallel, because a slow machine needs seconds to fill its memory."""

        def set_load_of(name: str) -> None:
            load = server if name == self._server_machine.name else loads.get(name, Load())
            free = max(_MAX_MEMORY - self._memory.get(name, 0.0), 0.0)
            self._neighbours[name].set_load(Load(load.cpu, min(load.memory, free)))

        with ThreadPoolExecutor(len(self._neighbours)) as pool:
            try:
                list(pool.map(set_load_of, self._neighbours))
            except BaseException:
                self.close()  # do not wait for the other machines
                raise
        time.sleep(self._timing.settle_s)

    def _observe(
        self, names: Sequence[str], for_s: float
    ) -> tuple[dict[str, Utilization], dict[str, dict[str, list[float]]]]:
        self._discard_execution_times()
        utilization, _ = self._utilization(names, for_s)
        return utilization, {name: self._neighbours[name].take_execution_times() for name in names}

    def _discard_execution_times(self) -> None:
        """Discard the execution times that the applications have reported so far."""
        for neighbours in self._neighbours.values():
            neighbours.take_execution_times()

    def _execution_times(self, active: Sequence[str]) -> dict[str, dict[str, list[float]]]:
        """Wait up to 30 s for at least one execution time of each application, and return all execution times."""
        times: dict[str, dict[str, list[float]]] = {name: {} for name in active}
        give_up_s = time.monotonic() + _EXECUTION_TIMEOUT_S
        while True:
            for name in active:
                for app, seconds in self._neighbours[name].take_execution_times().items():
                    times[name].setdefault(app, []).extend(seconds)
            missing = any(not times[name].get(app.name) for name in active for app in self._machines[name].background)
            if not missing or time.monotonic() > give_up_s:
                return times
            time.sleep(0.1)

    def close(self) -> None:
        """Remove all containers in parallel, because a stopped task may have little time."""
        with ThreadPoolExecutor(len(self._neighbours) + 1) as pool:
            ends = [self._measured_training.close, *(neighbours.close for neighbours in self._neighbours.values())]
            for end in [pool.submit(end) for end in ends]:
                end.result()

    def _utilization(
        self, names: Sequence[str], for_s: float, reference: Callable[[str], float] | None = None
    ) -> tuple[dict[str, Utilization], dict[str, float]]:
        machines = {**self._machines, self._server_machine.name: self._server_machine}
        chosen = [machines[name] for name in names]
        return measure_utilization(chosen, self._gauges, for_s, every_s=self._timing.every_s, reference=reference)
