"""A training on several machines that is run to be measured: the real one, its script unchanged."""

from __future__ import annotations

import json
import secrets
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.errors import TrainingFailedError
from paceline.fleet import Machine
from paceline.fleet.rendezvous import Rendezvous
from paceline.profiles.trainer import Trainer
from paceline.runtime import DockerRuntime, JobSpec
from paceline.runtime.docker_job import DockerJob
from paceline.train.asynchronous.plan import PLAN, SERVER_COMMAND
from paceline.train.job import ENV_EPOCHS
from paceline.train.progress import Progress, parse_line

# Who stands still holds batches, without which the others may not go on to the next epoch.
_SOON = ("--stuck-s", "3")
_FOR_EVER = 10**6  # epochs: a training is measured for as long as it takes
_BEGIN_S = 180.0
_LOOK_S = 0.1
LEAST_BATCHES = 3


@dataclass(frozen=True)
class TrainingSpec:
    """What is trained: a script, the image it runs in, and what it is given."""

    script: Path
    image: str
    arguments: Sequence[str] = ()
    files: Mapping[str, Path] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    inputs: Mapping[str, Path] = field(default_factory=dict)
    user: str = "65532:65532"


class Rehearsal:
    """Runs a training, and another one after it, until it is closed.

    Parameters
    ----------
    name:
        A name for its containers and networks that no others have.
    machines:
        Name to machine.
    server:
        The machine of the parameter server; with an ``address`` where they have several engines.
    training:
        What is trained.
    runtimes:
        Machine name to its engine.
    labels:
        Labels for every container.
    """

    def __init__(
        self,
        name: str,
        machines: Mapping[str, Machine],
        server: Machine,
        training: TrainingSpec,
        runtimes: Mapping[str, DockerRuntime],
        labels: Mapping[str, str] | None = None,
    ) -> None:
        self._name = name
        self._machines = machines
        self._server_machine = server
        self._training = training
        self._runtimes = runtimes
        self._labels = dict(labels or {})
        self._server: DockerJob | None = None
        self._closed = False
        self.trainers: dict[str, Trainer] = {}
        """Machine name to its training, since ``begin``."""

    def begin(self, plan: Mapping[str, Mapping[str, float]], *, fixed_parts: bool = False) -> None:
        """Begin a training, the one before being ended; it is under way on every machine when this returns.

        Parameters
        ----------
        plan:
            Machine name to ``samples`` and ``batch_size``.
        fixed_parts:
            Nobody takes over from who is slower.
        """
        self.end()
        is_open = any(self._machines[name].engine != self._server_machine.engine for name in plan)
        network = f"{self._name}-{uuid.uuid4().hex[:6]}"
        meeting = Rendezvous(network, self._server_machine, open=is_open, secret=secrets.token_hex())
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / PLAN
            file.write_text(json.dumps({"workers": plan}))
            command = [*SERVER_COMMAND, *_SOON, *(["--fixed-parts"] if fixed_parts else [])]
            spec = self._job(self._server_machine, command, files={file.name: file})
            self._server = self._start(self._server_machine, meeting.serve(spec))
        training = self._training
        for name in plan:
            machine = self._machines[name]
            spec = self._job(
                machine,
                ["python", training.script.name, *training.arguments],
                files={training.script.name: training.script, **training.files},
                environment={**training.environment, ENV_EPOCHS: str(_FOR_EVER)},
                inputs=training.inputs,
                gpus=machine.gpus,
            )
            self.trainers[name] = Trainer(name, self._start(machine, meeting.join(spec, machine)))
        give_up_s = time.monotonic() + _BEGIN_S
        for name, trainer in self.trainers.items():
            trainer.wait_for(LEAST_BATCHES * plan[name]["batch_size"], give_up_s)

    def wait_for(self, samples: float, patience_s: float) -> Progress:
        """Wait for the parameter server to say something new, and that so many samples of all epochs are done."""
        give_up_s = time.monotonic() + patience_s
        while time.monotonic() < give_up_s and self._server is not None:
            told = [found for found in map(parse_line, self._server.read_lines()) if found is not None]
            if told and told[-1].done >= samples:
                return told[-1]
            if self._server.wait(_LOOK_S):
                raise TrainingFailedError("the parameter server has ended")
        raise TrainingFailedError(f"the training has not done {samples:.0f} samples in {patience_s:.0f} s")

    def end(self) -> None:
        """End the training that is under way."""
        jobs = [*(trainer.job for trainer in self.trainers.values()), self._server]
        self.trainers, self._server = {}, None
        with ThreadPoolExecutor(len(jobs)) as pool:
            for ended in [pool.submit(job.remove) for job in jobs if job is not None]:
                ended.result()

    def close(self) -> None:
        """End it, and let none begin any more, also where another thread is at it."""
        self._closed = True
        self.end()

    def _job(self, machine: Machine, command: list[str], **more: Any) -> JobSpec:
        return JobSpec(
            name=f"{self._name}-{machine.name}-{uuid.uuid4().hex[:6]}",
            command=command,
            devices=machine.cores,
            image=self._training.image,
            user=self._training.user,
            memory_bytes=int(machine.memory_gib * 2**30),
            labels=self._labels,
            **more,
        )

    def _start(self, machine: Machine, spec: JobSpec) -> DockerJob:
        job = self._runtimes[machine.name].start(spec)
        if self._closed:  # meanwhile, by somebody who could not know of this job
            job.remove()
            raise TrainingFailedError("the bench was closed")
        return job
