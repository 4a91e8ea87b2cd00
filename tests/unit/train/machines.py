"""A training on several machines, with processes for machines: a parameter server, workers, holders of parts.

Used by ``test_asynchronous`` and ``test_parts``; what the workers train is in ``counted.py``. A worker that is held
ends no batch beyond a number until it may: what a test does meanwhile is in time on the slowest machine.
"""

import json
import os
import random
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import torch

from paceline.train.asynchronous.shards import SampleShare
from paceline.train.asynchronous.training import SharedTraining as Kept
from paceline.train.progress import parse_line

HERE = Path(__file__).parent
INCLUDE = HERE.parents[2] / "include"
SAMPLES, BATCH_SIZE = 60, 3
LIMIT_S = 120  # of what takes seconds


def free_port():
    """A port that is free, and stays so: those from 32768 on may be given to who connects to somewhere."""
    while True:
        port = random.randrange(20_000, 32_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


class Machine:
    """A process of the training, and what it says."""

    def __init__(self, fork, folder, command, environment):
        self.output = folder / "output"
        self.output.mkdir(parents=True, exist_ok=True)
        self._said = folder / "said.txt"
        own = {"PYTHONPATH": str(INCLUDE), "PACELINE_OUTPUT": str(self.output)}
        with self._said.open("w") as said:
            self.process = fork(
                command, env={**os.environ, **own, **environment}, stdout=said, stderr=subprocess.STDOUT
            )

    @property
    def said(self):
        return self._said.read_text()

    @property
    def all_said(self):
        """What each machine of the training has said; of one that was started again, since then."""
        every = sorted(self._said.parent.parent.glob("*/said.txt"))
        return "\n".join(f"--- {said.parent.name}\n{said.read_text()}" for said in every)

    @property
    def progress(self):
        return [parsed for line in self.said.splitlines() if (parsed := parse_line(line))]

    @property
    def newest(self):
        return self.progress[-1]

    @property
    def model(self):
        """The model that a worker leaves."""
        return torch.load(self.output / "model.pt", weights_only=True)

    def until(self, true):
        give_up = time.monotonic() + LIMIT_S
        while not true(self):
            assert self.process.poll() is None, self.all_said
            assert time.monotonic() < give_up, self.all_said
            time.sleep(0.01)

    def until_said(self, text):
        self.until(lambda machine: text in machine.said)

    def until_done(self, samples):
        """Wait for so many samples of a parameter server."""
        self.until(lambda machine: machine.progress and machine.newest.done >= samples)

    def until_held(self, after):
        """Wait until a worker is held after so many batches."""
        held = self.output / "held"
        self.until(lambda machine: held.exists() and held.read_text() == str(after))

    def end(self):
        with suppress(subprocess.TimeoutExpired):
            return self.process.wait(LIMIT_S)
        raise AssertionError(f"{self._said.parent.name} does not end\n{self.all_said}")

    def kill(self):
        self.process.kill()
        return self.end()

    def hold(self, after):
        """Let the worker end so many batches."""
        (self.output / "hold.new").write_text(str(after))
        (self.output / "hold.new").rename(self.output / "hold")

    def go_on(self):
        (self.output / "hold").unlink(missing_ok=True)


class TrainingOfMachines:
    """The machines of a training; none starts by itself but the parameter server."""

    def __init__(self, fork, folder, names, epochs=4, options=()):
        self._fork, self._folder = fork, folder
        self.plan = folder / "plan.json"
        workers = {name: {"samples": 20, "batch_size": BATCH_SIZE} for name in names}
        self.plan.write_text(json.dumps({"workers": workers}))
        self.epochs = epochs
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self._started = []
        self.serve(*options)

    def serve(self, *options):
        """Start the parameter server, also in place of one that has ended."""
        command = ["-m", "paceline.train.asynchronous", self.plan, "--port", self.port, *options]
        checkpoint = str(self._folder / "checkpoint")
        self.server = self._start(self._folder / "server", command, PACELINE_CHECKPOINT=checkpoint)
        self.server.until_said("listens on")

    def work(self, name, options=None, epochs=None, samples=SAMPLES, hold=None, **environment):
        """Start a worker; for ``options`` see ``counted.py``."""
        if hold is not None:
            (self._folder / name / "output").mkdir(parents=True, exist_ok=True)
            (self._folder / name / "output" / "hold").write_text(str(hold))
        command = [HERE / "counted.py", samples, epochs or self.epochs, json.dumps(options or {})]
        environment = {"PACELINE_SERVER": self.address, "PACELINE_WORKER": name} | environment
        return self._start(self._folder / name, command, **environment)

    def work_together(self, names, options=None, hold=0):
        """Start workers and wait until all train; none gets further than ``hold`` batches."""
        workers = [self.work(name, options, hold=hold) for name in names]
        for name in names:
            self.server.until_said(f"{name} trains")
        return workers

    def hold_part(self, name):
        """Start a process that holds a part of the state."""
        command = ["-m", "paceline.train.asynchronous.part"]
        own = {"PACELINE_SERVER": self.address, "PACELINE_WORKER": name}
        return self._start(self._folder / name, command, **own)

    def let_end(self, workers):
        """Let the workers go on, and wait for the good end of all."""
        for worker in workers:
            worker.go_on()
        for worker in workers:
            assert worker.end() == 0, worker.all_said
        assert self.server.end() == 0, self.server.all_said

    def finish(self, workers):
        """Let the workers end; each sample has counted once in every epoch."""
        self.let_end(workers)
        for worker in workers:
            assert worker.model["counts"].tolist() == [self.epochs] * SAMPLES

    def _start(self, folder, command, **environment):
        self._started.append(Machine(self._fork, folder, command, environment))
        return self._started[-1]

    def end(self):
        for machine in self._started:
            machine.kill()


def joined(names, batch_size, numbers=3, epochs=1):
    """Return the state that a server keeps, of ``numbers`` numbers; workers have joined it as its guests 0, 1, 2."""
    training = Kept({name: SampleShare(1, batch_size) for name in names}, stuck_s=60.0)
    training.begin_with(torch.zeros(numbers))
    for guest, name in enumerate(names):
        assert training.why_not(name, epochs, numbers) is None
        training.join(name, guest)
    return training
