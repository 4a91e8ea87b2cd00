"""Runs training jobs as teams of containers on one engine; a case may limit the containers' links."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from paceline.elastic import Decider, Step, Team, TeamConfiguration, TeamSample
from paceline.elastic.nodes import LABEL_TEAM
from paceline.elastic.runtime import TeamRuntime
from paceline.elastic.team import TeamJob
from paceline.errors import PacelineError
from paceline.fleet import Link
from paceline.runtime import DockerRuntime, JobSpec
from paceline.testing.emulated_link import limit_bandwidth
from paceline.train.progress import parse_line

HERE = Path(__file__).parent
_POLL_S = 0.25
_TRANSFER_S = 0.06  # time to transfer a model's state over a narrow link in one direction
_STATE_BYTES = {"cnn": 240_000, "transformer": 1_620_000, "lstm": 680_000}


@dataclass(frozen=True)
class Case:
    """A model, the kind of its links, and its waiting time for data."""

    model: str
    narrow: bool = False
    wait_s: float = 0.0  # time that each batch waits for its data

    @property
    def link_mbit_s(self) -> float | None:
        """The rate of each node's link; the rate of a narrow link is proportional to the size of the model's state."""
        return 8 * _STATE_BYTES[self.model] / _TRANSFER_S / 1e6 if self.narrow else None

    @property
    def arguments(self) -> list[str]:
        """The arguments of the training script, except the epochs."""
        return [self.model, "--wait-s", str(self.wait_s)]

    def __str__(self) -> str:
        return f"{self.model}, " + (f"links of {self.link_mbit_s:g} Mbit/s" if self.link_mbit_s else "free links")


@dataclass
class Run:
    """Result of a run. Each of ``steps`` has the seconds since the first batch, kind, configuration and reason."""

    steps: list[tuple[float, str, str, str]]
    speeds: list[tuple[float, float]]
    """Seconds from the first batch to the start of each configuration, and its mean steps per second."""
    seconds: float
    settled_s: float | None
    most_cores: float
    output: dict[str, Any] | None


class Stage:
    """Runs the benchmark's training jobs on an engine.

    Parameters
    ----------
    connect:
        Function that returns a client of the engine.
    image:
        Image with Python and torch.
    budget:
        Cores of a job.
    on_line:
        Called with each line of the log.
    """

    def __init__(self, connect: Callable[[], Any], image: str, budget: float, on_line: Callable[[str], None]) -> None:
        self._connect, self._image, self.budget, self._on_line = connect, image, budget, on_line

    def options(self, case: Case) -> Team:
        """Return default options with the link rate of the case."""
        return Team(link_mbit_s=case.link_mbit_s)

    def run(
        self, case: Case, decider: Decider, *, epochs: int, until: Callable[[], bool], folder: Path | None = None
    ) -> Run:
        """Train until ``until`` returns true or training ends; in the latter case, collect the output in ``folder``."""
        links = _Links(self._connect(), case.link_mbit_s)
        steps: list[tuple[float, str, str, str]] = []
        began_s, settled_s, most_cores = None, None, 0.0
        recording = _RecordingDecider(decider)
        team = self.start(case, recording, epochs)
        try:
            ended = False
            while not (ended := team.wait(_POLL_S)) and not until():
                links.limit_new(team.id)
                team.usage()
                most_cores = max(most_cores, team.configuration.cores)
                started = any(one.done for line in team.read_lines() if (one := parse_line(line)))
                began_s = time.monotonic() if began_s is None and started else began_s
                for step in team.take_steps():
                    passed_s = time.monotonic() - (began_s or time.monotonic())
                    settled_s = passed_s if step.kind == "settled" else None
                    steps.append((round(passed_s, 2), step.kind, str(step.configuration), step.reason))
                    self._on_line(f"{passed_s:6.0f} s  {step.reason}  ->  {step.configuration}")
            seconds = time.monotonic() - (began_s or time.monotonic())
            output = _collect(team, folder) if ended and folder is not None else None
            return Run(steps, recording.speeds(began_s or 0.0), seconds, settled_s, most_cores, output)
        finally:
            with contextlib.suppress(PacelineError):
                team.stop(1.0)
            team.remove()

    def start(self, case: Case, decider: Decider, epochs: int) -> TeamJob:
        """Start a training job as a team."""
        spec = self.worker_spec(f"elastic-{uuid.uuid4().hex[:8]}", case, epochs)
        containers = DockerRuntime(self._connect)
        return TeamRuntime(containers, lambda _: spec, options=self.options(case), decider=lambda *_: decider).start(
            spec
        )

    def worker_spec(self, name: str, case: Case, epochs: int) -> JobSpec:
        """Return the job specification of a case."""
        command = ["python", "train.py", *case.arguments, "--epochs", str(epochs)]
        files = {file: HERE / file for file in ("train.py", "models.py")}
        return JobSpec(name=name, command=command, devices=self.budget, image=self._image, files=files)


class _RecordingDecider:
    """Wraps a decider and records the speed of each configuration."""

    def __init__(self, decider: Decider) -> None:
        self._decider = decider
        self._seen: list[tuple[float, list[float]]] = [(0.0, [])]

    @property
    def configuration(self) -> TeamConfiguration:
        return self._decider.configuration

    def decide(self, sample: TeamSample) -> Step | None:
        self._seen[-1][1].append(sample.speed)
        return self._record_step(self._decider.decide(sample))

    def set_budget(self, budget: float) -> Step | None:
        return self._record_step(self._decider.set_budget(budget))

    def reject(self, reason: str) -> Step | None:
        return self._record_step(self._decider.reject(reason))

    def speeds(self, began_s: float) -> list[tuple[float, float]]:
        """Return the start time and the mean speed of each configuration that has samples."""
        return [(round(max(at_s - began_s, 0.0), 2), fmean(speeds)) for at_s, speeds in self._seen if speeds]

    def _record_step(self, step: Step | None) -> Step | None:
        if step is not None and step.kind != "settled":
            self._seen.append((time.monotonic(), []))
        return step


class _Links:
    """Limits the bandwidth of each container of a team soon after the container starts."""

    def __init__(self, client: Any, mbit_s: float | None) -> None:
        self._client = client
        self._link = Link(mbit_per_s=mbit_s) if mbit_s else None
        self._limited: set[str] = set()

    def limit_new(self, first: str) -> None:
        """Limit the bandwidth of new containers in the team of the container ``first``."""
        if self._link is None:
            return
        team = self._client.inspect_container(first)["Config"]["Labels"][LABEL_TEAM]
        for one in self._client.containers(filters={"label": f"{LABEL_TEAM}={team}"}):
            if one["Id"] not in self._limited:
                with contextlib.suppress(PacelineError):  # the container has ended or is still starting
                    limit_bandwidth(self._client, one["Id"], self._link)
                    self._limited.add(one["Id"])


def _collect(team: Any, folder: Path) -> dict[str, Any]:
    import torch

    team.collect(folder)
    result = torch.load(folder / "result.pt", weights_only=True)
    return {"accuracy": float(result["accuracy"]), "counts": [int(one) for one in result["counts"].round()]}


def search_grid(budget: float, *, quick: bool) -> list[TeamConfiguration]:
    """Return the fixed configurations of exhaustive search, each of which uses the whole budget.

    >>> len(search_grid(1.6, quick=True)), len(search_grid(1.6, quick=False))
    (8, 27)
    """
    kinds = ((1, 2), (2, 4), (0.1, 0.25)) if quick else ((1, 2, 3), (2, 3, 5), (0.1, 0.2, 0.35))
    return [
        TeamConfiguration((share * budget / servers,) * servers, ((1 - share) * budget / workers,) * workers)
        for servers in kinds[0]
        for workers in kinds[1]
        for share in kinds[2]
    ]
