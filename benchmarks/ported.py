"""Checks whether a training script that is killed and restarted ends like an undisturbed one.

``python -m benchmarks.ported train.py [--rounds 3] [--kills 2] [-- ARGUMENT ...]`` runs the script twice undisturbed,
then several times with kills at random moments of its training, each by SIGKILL or SIGTERM. It compares all files of
the output folder and the last progress line with those of the first run. The runs take as long as the script.

``--deadline 1.5`` instead runs the script on all cores, then twice by a deadline of 1.5 times that time. The second of
these runs knows the measurements of the first.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.deadline.run import was_out_of_cores
from benchmarks.local_jobs import by_deadline, constant, train
from benchmarks.options import between
from paceline.control import PastRun
from paceline.errors import PacelineError
from paceline.runtime import JobSpec, ProcessRuntime
from paceline.train.progress import parse_line

_MAX_LIVES = 8  # of a script that fails again and again
_SHOWN = 20  # lines of a failed script


@dataclass
class Life:
    """One process of the script: exit code, seconds and steps of its training, its messages, and its last lines."""

    code: int = 0
    training_s: float = 0.0
    steps: list[int] = field(default_factory=list)
    metrics: dict[str, float | None] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)
    tail: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Kill:
    """A signal that is sent some seconds after the first progress line."""

    signal: signal.Signals
    after_s: float


class Script:
    """A training script with its arguments, run like a job by the Python of this process."""

    def __init__(self, path: Path, arguments: Sequence[str], inputs: Path | None) -> None:
        self._path, self._arguments = path.resolve(), arguments
        self._inputs = (inputs or self._path.parent).resolve()

    def live(self, folder: Path, kill: Kill | None = None) -> Life:
        """Run the script until it ends, with the output and the checkpoints of ``folder``."""
        environment = os.environ | {"PACELINE_PROGRESS": "lines", "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
        for name in ("output", "checkpoint", "work"):
            (folder / name).mkdir(parents=True, exist_ok=True)
            environment[f"PACELINE_{name.upper()}"] = str(folder / name)
        environment["PACELINE_INPUT"] = str(self._inputs)
        process = subprocess.Popen(
            [sys.executable, self._path, *self._arguments],
            cwd=folder / "work",
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        life, began_s, timer = Life(), 0.0, None
        assert process.stdout is not None
        for line in process.stdout:
            if (progress := parse_line(line)) is None:
                life.tail = [*life.tail[1 - _SHOWN :], line.rstrip()]
                if line.startswith("paceline: "):
                    life.messages.append(line.removeprefix("paceline: ").rstrip())
                continue
            if not life.steps:
                began_s = time.monotonic()
                if kill is not None:
                    timer = threading.Timer(kill.after_s, process.send_signal, [kill.signal])
                    timer.start()
            life.training_s = time.monotonic() - began_s
            life.steps.append(progress.done)
            life.metrics = {"loss": progress.loss, **progress.metrics}
        life.code = process.wait()
        if timer is not None:
            timer.cancel()
        return life

    def spec(self) -> JobSpec:
        """Return the script as a job under the control loop, with the environment of this process."""
        own = {name: value for name, value in os.environ.items() if not name.startswith("PACELINE_")}
        return JobSpec(
            name=f"ported-{uuid.uuid4().hex[:8]}",
            command=["python", str(self._path), *self._arguments],
            devices=1.0,
            inputs={path.name: path for path in self._inputs.iterdir()},
            environment=own,
            memory_bytes=None,
        )


def differences(first: Path, second: Path) -> list[str]:
    """Return the names of the files that differ between two folders."""
    names = {path.relative_to(folder) for folder in (first, second) for path in folder.rglob("*") if path.is_file()}
    return sorted(str(name) for name in names if _content(first / name) != _content(second / name))


def _content(path: Path) -> bytes | None:
    with contextlib.suppress(OSError):
        return path.read_bytes()
    return None


def run_round(script: Script, folder: Path, kills: int, training_s: float, random: random.Random) -> list[Life]:
    """Run the script with kills until it ends by itself; return its lives. Raises RuntimeError if it fails."""
    lives: list[Life] = []
    left_s = training_s
    while True:
        kill = None
        if len(lives) < kills:
            kill = Kill(random.choice([signal.SIGKILL, signal.SIGTERM]), random.uniform(0.1, 0.8) * left_s)
            left_s -= kill.after_s
        lives.append(script.live(folder, kill))
        code = lives[-1].code
        if code == 0:
            return lives
        if code not in (-signal.SIGKILL, -signal.SIGTERM, 128 + signal.SIGTERM) or len(lives) == _MAX_LIVES:
            raise RuntimeError(f"the restarted script ended with exit code {code}:\n" + "\n".join(lives[-1].tail))


def print_deadlines(script: Script, runtime: ProcessRuntime, factor: float) -> None:
    """Run the script on all cores, then twice by a deadline; print a row of a table for each run."""
    cores = runtime.capacity()
    natural = train(runtime, script.spec(), constant(cores))
    print(f"on all {cores:g} cores: {_figures(natural)}")
    deadline_s, past = factor * natural["finished_s"], None
    for name in ("first run", "second run"):
        run = train(runtime, script.spec(), by_deadline(deadline_s, cores, past), past)
        late_s = run["finished_s"] - deadline_s
        star = " (late on all cores)" if was_out_of_cores(run, cores) else ""
        print(
            f"{name}: deadline {deadline_s:.1f} s, {run['error_pct']:+.2f} % or {late_s:+.2f} s{star}, {_figures(run)}"
        )
        past = PastRun.read(run["learned"])


def _figures(run: Mapping[str, Any]) -> str:
    return (
        f"ended at {run['finished_s']:.1f} s, {run['core_seconds']:.1f} core-seconds, "
        f"used by other processes: {run['other_cores']:.2f} cores"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the script, print each round, and return 0 if all rounds end like the undisturbed one."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ported", description=__doc__)
    parser.add_argument("script", type=Path)
    parser.add_argument("arguments", nargs="*", help="arguments of the script, after --")
    parser.add_argument("--inputs", type=Path, help="the input folder; by default the folder of the script")
    parser.add_argument("--rounds", type=between(1, 1000), default=3)
    parser.add_argument("--kills", type=between(1, _MAX_LIVES - 1), default=2, help="kills in a round (2)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments of the kills (0)")
    parser.add_argument(
        "--deadline",
        type=between(1.0, 100.0),
        metavar="FACTOR",
        help="run the script by a deadline of so many times its time on all cores, instead of killing it",
    )
    options = parser.parse_args(arguments)
    script, choice = Script(options.script, options.arguments, options.inputs), random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="ported-") as name:
        root = Path(name)
        if options.deadline is not None:
            try:
                print_deadlines(script, ProcessRuntime(root), options.deadline)
            except PacelineError as error:
                print(f"{options.script}: {error}")
                return 2
            return 0
        first, second = (script.live(root / run) for run in ("first", "second"))
        if first.code or not first.steps:
            print(f"{options.script}: exit code {first.code}, {len(first.steps)} progress lines", *first.tail, sep="\n")
            return 2
        print(f"undisturbed: {first.steps[-1]:,} steps in {first.training_s:.1f} s, {json.dumps(first.metrics)}")
        unstable = differences(root / "first" / "output", root / "second" / "output")
        if unstable or first.metrics != second.metrics:
            print(f"two undisturbed runs differ ({', '.join(unstable) or 'metrics'}): set all seeds, or use one thread")
            return 2
        equal = 0
        for number in range(options.rounds):
            folder = root / f"round-{number}"
            lives = run_round(script, folder, options.kills, first.training_s, choice)
            found = differences(root / "first" / "output", folder / "output")
            found += ["metrics"] * (lives[-1].metrics not in (first.metrics, {}))
            steps = ", ".join(f"{life.steps[0]:,} to {life.steps[-1]:,}" if life.steps else "none" for life in lives)
            print(f"round {number + 1}: steps {steps}: {'differs: ' + ', '.join(found) if found else 'exact'}")
            for message in dict.fromkeys(message for life in lives for message in life.messages):
                print(f"  {message}")
            equal += not found
    print(f"{equal} of {options.rounds} rounds exact")
    return int(equal < options.rounds)


if __name__ == "__main__":
    sys.exit(main())
