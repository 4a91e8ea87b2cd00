"""Measures a training, and what runs beside it, at stress points: section IV of Deep-Edge.

A bench has a parameter server and some machines. The training is the real one, its script unchanged; between two
measurements it stands still, so that a point costs seconds.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.errors import InvalidInputError, PacelineError, TrainingFailedError
from paceline.fleet import Worker
from paceline.profile.neighbours import IMAGE, Load, Neighbours
from paceline.profile.readings import Gauge, Seen, percentile, watch
from paceline.profile.trainer import Trainer
from paceline.runtime import DockerRuntime, JobSpec
from paceline.runtime.base import ENV_EPOCHS, ENV_SERVER, ENV_WORKER
from paceline.runtime.docker_job import DockerJob
from paceline.train.asynchronous.plan import PORT

_SERVER = "parameter-server"
# Who stands still holds batches, without which the others may not go on to the next epoch.
_SOON = ("--stuck-s", "3")
_FOR_EVER = 10**6  # epochs: a training is measured for as long as it takes
_BEGIN_S = 180.0
_EXECUTION_S = 30.0  # an application's execution that takes longer is not waited for
_LEAST_BATCHES = 3
_FULLEST = 0.9  # load takes no more of a machine's memory: a profile must not kill what runs there


@dataclass(frozen=True)
class Training:
    """What is trained: a script, the image it runs in, and what it is given."""

    script: Path
    image: str
    arguments: Sequence[str] = ()
    files: Mapping[str, Path] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    inputs: Mapping[str, Path] = field(default_factory=dict)
    user: str = "65532:65532"


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
        The machines; all are reached through one engine, as for a training.
    server:
        The machine of the parameter server.
    training:
        What is trained.
    runtime:
        Their engine.
    gauges:
        Machine name to what reads its usage.
    image:
        Image with stress-ng.
    timing:
        How long to look.
    reference:
        Does the same work each time and returns how long it took; for machines whose own speed changes, such as parts
        of a virtual one. Its median goes into each row as ``reference_s``.
    labels:
        Labels for every container.

    Examples
    --------
    >>> with Bench(machines, server, training, runtime, gauges) as bench:  # doctest: +SKIP
    ...     bench.train({"gate-1": 16, "gate-2": 32})
    ...     rows = bench.measure({"gate-1": Load(cpu=0.5)}, active=["gate-1", "gate-2"])
    """

    def __init__(
        self,
        machines: Sequence[Worker],
        server: Worker,
        training: Training,
        runtime: DockerRuntime,
        gauges: Mapping[str, Gauge],
        *,
        image: str = IMAGE,
        timing: Timing | None = None,
        reference: Callable[[], float] | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        self._machines = {machine.name: machine for machine in machines}
        if len(self._machines) < len(machines) or server.name in self._machines:
            names = [*(machine.name for machine in machines), server.name]
            raise InvalidInputError("machines", names, "a name for each, and the server apart from them")
        self._server_machine = server
        self._training = training
        self._runtime = runtime
        self._gauges = gauges
        self._timing = timing or Timing()
        self._reference = reference
        self._labels = dict(labels or {})
        self._run = f"profile-{uuid.uuid4().hex[:8]}"
        self._neighbours = {
            name: Neighbours(runtime, machine, f"{self._run}-{name}", image, labels)
            for name, machine in {**self._machines, server.name: server}.items()
        }
        self._batch: dict[str, int] = {}
        self._memory: dict[str, float] = {}  # share in use where a training runs without load
        self._server: DockerJob | None = None
        self._trainers: dict[str, Trainer] = {}
        self._closed = False

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
        self._end_training()
        for neighbours in self._neighbours.values():
            neighbours.set(Load())
        self._batch = dict(batch)
        network = f"{self._run}-{uuid.uuid4().hex[:6]}"
        plan = {"workers": {name: {"samples": 1, "batch_size": size} for name, size in batch.items()}}
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "plan.json"
            file.write_text(json.dumps(plan))
            self._server = self._start(
                self._server_machine,
                ["python", "-m", "paceline.train.asynchronous", file.name, "--host", "0.0.0.0", *_SOON],  # noqa: S104
                network,
                files={file.name: file},
                alias=_SERVER,
            )
        training = self._training
        for name in batch:
            environment = {
                **training.environment,
                ENV_SERVER: f"{_SERVER}:{PORT}",
                ENV_WORKER: name,
                ENV_EPOCHS: str(_FOR_EVER),
            }
            job = self._start(
                self._machines[name],
                ["python", training.script.name, *training.arguments],
                network,
                files={training.script.name: training.script, **training.files},
                environment=environment,
                inputs=training.inputs,
            )
            self._trainers[name] = Trainer(name, job)
        give_up_s = time.monotonic() + _BEGIN_S
        for trainer in self._trainers.values():
            trainer.wait_for(_LEAST_BATCHES * batch[trainer.name], give_up_s)
        seen, _ = self._watch(list(self._neighbours), 0.0)
        self._memory = {name: one.most_memory for name, one in seen.items()}
        for trainer in self._trainers.values():
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
            A row for each active machine, with the columns that ``paceline.profile.learn`` wants: shares from 0 to 1,
            seconds. ``stress_cpu``, ``stress_memory`` and ``server_stress`` are the loads.
        """
        timing = self._timing
        server = server or Load()
        for name, neighbours in self._neighbours.items():
            load = server if name == self._server_machine.name else loads.get(name, Load())
            room = max(_FULLEST - self._memory[name], 0.0)
            neighbours.set(Load(load.cpu, min(load.memory, room)))
        time.sleep(timing.settle_s)
        names = [*active, self._server_machine.name]
        before, _ = self._watch(names, timing.before_s)
        for name in active:
            self._trainers[name].now()
            self._trainers[name].job.unpause()
        try:
            give_up_s = time.monotonic() + _BEGIN_S
            for name in active:
                # The first word after the standstill is of before it, and the batch after that has it in its time.
                told = self._trainers[name].wait_for_news(give_up_s)
                self._trainers[name].wait_for(told.spent["samples"] + 2 * self._batch[name], give_up_s)
            for neighbours in self._neighbours.values():
                neighbours.take_times()
            first = {name: self._trainers[name].now() for name in active}
            during, reference_s = self._watch(names, timing.training_s)
            times = self._executions(active)
            for name in active:
                wanted = first[name].spent["samples"] + _LEAST_BATCHES * self._batch[name]
                self._trainers[name].wait_for(wanted, give_up_s)
            last = {name: self._trainers[name].now() for name in active}
        finally:
            for name in active:
                with contextlib.suppress(PacelineError):  # one that has ended is told of by what ended this
                    self._trainers[name].job.pause()
        pushes = sum(1 / self._batch[name] for name in active)
        rows = []
        for name in active:
            spent = {key: last[name].spent[key] - first[name].spent[key] for key in last[name].spent}
            load, machine = loads.get(name, Load()), self._machines[name]
            # The training that stands still holds memory: it is not of the state before.
            paused = self._trainers[name].memory_bytes / (machine.memory_gib * 2**30)
            row = {
                "machine": name,
                "kind": machine.kind,
                "stress_cpu": load.cpu,
                "stress_memory": load.memory,
                "server_stress": server.cpu,
                "batch_size": float(self._batch[name]),
                "workers": float(len(active)),
                "pushes_per_sample": pushes,
                "server_cpu": before[self._server_machine.name].mean_cpu,
                "cpu": before[name].mean_cpu,
                "gpu": 0.0,
                "memory": max(before[name].most_memory - paused, 0.0),
                "new_cpu": during[name].high_cpu,
                "new_gpu": 0.0,
                "new_memory": during[name].most_memory,
                "compute_s": spent["compute_s"] / spent["samples"],
                "update_s": spent["update_s"] / spent["batches"],
            }
            if reference_s is not None:
                row["reference_s"] = reference_s
            for app, executions in times[name].items():
                row[f"execution_s.{app}"] = percentile(executions)
            rows.append(row)
        return rows

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
        self._closed = True
        with ThreadPoolExecutor(len(self._neighbours) + 1) as pool:
            ends = [self._end_training, *(neighbours.close for neighbours in self._neighbours.values())]
            for end in [pool.submit(end) for end in ends]:
                end.result()

    def _end_training(self) -> None:
        jobs = [*(trainer.job for trainer in self._trainers.values()), self._server]
        self._trainers, self._server = {}, None
        with ThreadPoolExecutor(len(jobs)) as pool:
            for end in [pool.submit(job.remove) for job in jobs if job is not None]:
                end.result()

    def _start(self, machine: Worker, command: list[str], network: str, **more: Any) -> DockerJob:
        spec = JobSpec(
            name=f"{self._run}-{machine.name}-{uuid.uuid4().hex[:6]}",
            command=command,
            devices=machine.cores,
            image=self._training.image,
            user=self._training.user,
            memory_bytes=int(machine.memory_gib * 2**30),
            own_network=network,
            cgroup_parent=machine.cgroup_parent,
            labels=self._labels,
            **more,
        )
        job = self._runtime.start(spec)
        if self._closed:  # by another thread meanwhile, which could not know of this job
            job.remove()
            raise TrainingFailedError("the bench was closed")
        return job

    def _watch(self, names: Sequence[str], for_s: float) -> tuple[dict[str, Seen], float | None]:
        machines = {**self._machines, self._server_machine.name: self._server_machine}
        every_s, reference = self._timing.every_s, self._reference
        return watch([machines[name] for name in names], self._gauges, for_s, every_s=every_s, reference=reference)
