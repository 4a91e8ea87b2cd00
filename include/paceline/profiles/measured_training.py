"""Runs the user's training script on several machines for measurements. Used by ``bench``."""

from __future__ import annotations

import json
import logging
import secrets
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
from paceline.profiles._worker_job import WorkerJob
from paceline.profiles.neighbours import LONGEST_LIFE_S
from paceline.runtime import JobSpec, PausableJob, SupportsTeams
from paceline.runtime.temporary import TemporaryFolder
from paceline.train.job import ENV_EPOCHS
from paceline.train.parameter_server.plan import PLAN, SERVER_COMMAND
from paceline.train.progress import Progress, parse_line

log = logging.getLogger(__name__)

# A suspended worker does not finish its batches. The server reassigns them after 3 s, so that the epoch can end.
_STUCK_OPTION = ("--stuck-s", "3")
_EPOCHS = 10**6  # practically unlimited, because the bench ends the job
_START_TIMEOUT_S = 180.0
_POLL_S = 0.1
MIN_BATCHES = 3


@dataclass(frozen=True)
class TrainingSpec:
    """Script, image, arguments, files and environment of a training job.

    ``memory_bytes``: limit of each job beside a measurement; ``None`` for all memory of its machine.
    """

    script: Path
    image: str
    arguments: Sequence[str] = ()
    files: Mapping[str, Path] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    inputs: Mapping[str, Path] = field(default_factory=dict)
    user: str = "65532:65532"
    allow_root: bool = False
    memory_bytes: int | None = None


class MeasuredTraining:
    """Runs successive training jobs on several machines.

    Parameters
    ----------
    name:
        Unique prefix of the names of containers and networks.
    machines:
        Mapping of names to machines.
    server:
        Machine of the parameter server; needs an ``address`` if the machines have several engines.
    training:
        Script, image and files of the training job.
    runtimes:
        Mapping of machine names to runtimes.
    labels:
        Labels for every container.
    """

    def __init__(
        self,
        name: str,
        machines: Mapping[str, Machine],
        server: Machine,
        training: TrainingSpec,
        runtimes: Mapping[str, SupportsTeams],
        labels: Mapping[str, str] | None = None,
    ) -> None:
        self._name = name
        self._machines = machines
        self._server_machine = server
        self._training = training
        self._runtimes = runtimes
        self._labels = dict(labels or {})
        self._server: PausableJob | None = None
        self._closed = False
        self.jobs: dict[str, WorkerJob] = {}
        """Mapping of machine names to the workers of the current training job."""

    def start(self, plan: Mapping[str, Mapping[str, float]], *, fixed_shards: bool = False) -> None:
        """End the previous training job, start a new job, and wait until every machine trains.

        Parameters
        ----------
        plan:
            Mapping of machine names to ``samples`` and ``batch_size``.
        fixed_shards:
            If true, faster machines do not take over samples of slower machines.
        """
        self.end()
        is_open = any(self._machines[name].engine != self._server_machine.engine for name in plan)
        network = f"{self._name}-{uuid.uuid4().hex[:6]}"
        rendezvous = Rendezvous(network, self._server_machine, open=is_open, secret=secrets.token_hex())
        with TemporaryFolder() as folder:
            file = folder / PLAN
            file.write_text(json.dumps({"workers": plan}))
            command = [*SERVER_COMMAND, *_STUCK_OPTION, *(["--fixed-shards"] if fixed_shards else [])]
            spec = self._job_spec(self._server_machine, command, files={file.name: file})
            self._server = self._start_job(self._server_machine, rendezvous.server_spec(spec))
        training = self._training
        for name in plan:
            machine = self._machines[name]
            spec = self._job_spec(
                machine,
                ["python", training.script.name, *training.arguments],
                files={training.script.name: training.script, **training.files},
                environment={**training.environment, ENV_EPOCHS: str(_EPOCHS)},
                inputs=training.inputs,
                gpus=machine.gpus,
            )
            self.jobs[name] = WorkerJob(name, self._start_job(machine, rendezvous.worker_spec(spec, machine)))
        log.info("The training job starts on %s: it loads its libraries and its data", ", ".join(self.jobs))
        give_up_s = time.monotonic() + _START_TIMEOUT_S
        for name, job in self.jobs.items():
            job.wait_for_samples(MIN_BATCHES * plan[name]["batch_size"], give_up_s)
            log.info("%s trains", name)

    def wait_for_samples(self, samples: float, timeout_s: float) -> Progress:
        """Wait until the parameter server reports ``samples`` done in all epochs, and return the report."""
        give_up_s = time.monotonic() + timeout_s
        while time.monotonic() < give_up_s and self._server is not None:
            reports = [report for report in map(parse_line, self._server.read_lines()) if report is not None]
            if reports and reports[-1].done >= samples:
                return reports[-1]
            if self._server.wait(_POLL_S):
                raise TrainingFailedError("the parameter server has ended")
        raise TrainingFailedError(f"the training job did not complete {samples:.0f} samples within {timeout_s:.0f} s")

    def end(self) -> None:
        """End the current training job."""
        jobs = [*(job.job for job in self.jobs.values()), self._server]
        self.jobs, self._server = {}, None
        with ThreadPoolExecutor(len(jobs)) as pool:
            for ended in [pool.submit(job.remove) for job in jobs if job is not None]:
                ended.result()

    def close(self) -> None:
        """End the current training job and prevent new jobs, including a job that another thread is starting."""
        self._closed = True
        self.end()

    def _job_spec(self, machine: Machine, command: list[str], **options: Any) -> JobSpec:
        return JobSpec(
            name=f"{self._name}-{machine.name}-{uuid.uuid4().hex[:6]}",
            command=command,
            devices=machine.cores,
            image=self._training.image,
            user=self._training.user,
            allow_root=self._training.allow_root,
            memory_bytes=self._training.memory_bytes or int(machine.memory_gib * 2**30),
            labels=self._labels,
            lease_s=LONGEST_LIFE_S,
            **options,
        )

    def _start_job(self, machine: Machine, spec: JobSpec) -> PausableJob:
        job = self._runtimes[machine.name].start(spec)
        if self._closed:  # another thread closed the bench before this job was registered
            job.remove()
            raise TrainingFailedError("the bench was closed")
        return job
