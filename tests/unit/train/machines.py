"""A training job on machines that processes emulate: a parameter server, workers, and holders of state shards.

The workers run ``counted.py``. A held worker completes no further
batch until it is resumed, so tests do not depend on the speed of the machine.
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

from paceline.train.parameter_server._training import SharedTraining
from paceline.train.parameter_server.shards import SampleShare
from paceline.train.progress import parse_line

HERE = Path(__file__).parent
INCLUDE = HERE.parents[2] / "include"
SAMPLES, BATCH_SIZE = 60, 3
LIMIT_S = 120  # timeout for operations that take seconds


def free_port():
    """Return a free port below 32768, because the system assigns higher ports to outgoing connections."""
    while True:
        port = random.randrange(20_000, 32_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


class Machine:
    """An emulated machine: one process of the job, and the log of the process."""

    def __init__(self, fork, folder, command, environment):
        self.output = folder / "output"
        self.output.mkdir(parents=True, exist_ok=True)
        self._log_path = folder / "log.txt"
        variables = {"PYTHONPATH": str(INCLUDE), "PACELINE_OUTPUT": str(self.output)}
        with self._log_path.open("w") as log:
            self.process = fork(
                command, env={**os.environ, **variables, **environment}, stdout=log, stderr=subprocess.STDOUT
            )

    @property
    def log(self):
        return self._log_path.read_text()

    @property
    def all_logs(self):
        """The logs of all machines. The log of a restarted machine begins at the restart."""
        every = sorted(self._log_path.parent.parent.glob("*/log.txt"))
        return "\n".join(f"--- {log.parent.name}\n{log.read_text()}" for log in every)

    @property
    def progress(self):
        return [parsed for line in self.log.splitlines() if (parsed := parse_line(line))]

    @property
    def newest_progress(self):
        return self.progress[-1]

    @property
    def model(self):
        """The trained model that a worker has written."""
        return torch.load(self.output / "model.pt", weights_only=True)

    def wait_until(self, condition):
        time_limit_s = time.monotonic() + LIMIT_S
        while not condition(self):
            assert self.process.poll() is None, self.all_logs
            assert time.monotonic() < time_limit_s, self.all_logs
            time.sleep(0.01)

    def wait_until_logged(self, text):
        self.wait_until(lambda machine: text in machine.log)

    def wait_until_done(self, samples):
        """Wait until the parameter server reports this number of trained samples."""
        self.wait_until(lambda machine: machine.progress and machine.newest_progress.done >= samples)

    def wait_until_held(self, after):
        """Wait until the worker is held after this number of batches."""
        held = self.output / "held"
        self.wait_until(lambda machine: held.exists() and held.read_text() == str(after))

    def held_after(self):
        """Wait until the worker is held, and return after how many batches."""
        held = self.output / "held"
        self.wait_until(lambda machine: held.exists() and held.read_text())
        return int(held.read_text())

    def wait_for_end(self):
        with suppress(subprocess.TimeoutExpired):
            return self.process.wait(LIMIT_S)
        raise AssertionError(f"{self._log_path.parent.name} does not end\n{self.all_logs}")

    def kill(self):
        self.process.kill()
        return self.wait_for_end()

    def hold(self, after):
        """Hold the worker after this number of batches."""
        (self.output / "hold.new").write_text(str(after))
        (self.output / "hold.new").rename(self.output / "hold")

    def resume(self):
        (self.output / "hold").unlink(missing_ok=True)


class EmulatedTraining:
    """A job on emulated machines. The constructor starts only the parameter server."""

    def __init__(self, fork, folder, names, epochs=4, options=(), program=("-m", "paceline.train.parameter_server")):
        self._fork, self._folder, self.program = fork, folder, program
        self.plan = folder / "plan.json"
        workers = {name: {"samples": 20, "batch_size": BATCH_SIZE} for name in names}
        self.plan.write_text(json.dumps({"workers": workers}))
        self.epochs = epochs
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self._started = []
        self.start_server(*options)

    def start_server(self, *options):
        """Start or restart the parameter server."""
        command = [*self.program, self.plan, "--port", self.port, *options]
        checkpoint = str(self._folder / "checkpoint")
        self.server = self._start(self._folder / "server", command, PACELINE_CHECKPOINT=checkpoint)
        self.server.wait_until_logged("listens on")

    def start_worker(self, name, options=None, epochs=None, samples=SAMPLES, hold=None, **environment):
        """Start a worker. ``counted.py`` describes the ``options``."""
        output = self._folder / name / "output"
        output.mkdir(parents=True, exist_ok=True)
        (output / "held").unlink(missing_ok=True)  # by an earlier process of the worker
        if hold is not None:
            (output / "hold").write_text(str(hold))
        command = [HERE / "counted.py", samples, epochs or self.epochs, json.dumps(options or {})]
        environment = {"PACELINE_SERVER": self.address, "PACELINE_WORKER": name} | environment
        return self._start(self._folder / name, command, **environment)

    def start_workers(self, names, options=None, hold=0):
        """Start workers that are held after ``hold`` batches, and wait until all workers have joined."""
        workers = [self.start_worker(name, options, hold=hold) for name in names]
        for name in names:
            self.server.wait_until_logged(f"{name} has joined")
        return workers

    def start_holder(self, name):
        """Start a process that holds a shard of the state."""
        command = ["-m", "paceline.train.parameter_server.state_shard"]
        variables = {"PACELINE_SERVER": self.address, "PACELINE_WORKER": name}
        return self._start(self._folder / name, command, **variables)

    def finish_all(self, workers):
        """Resume the workers, and check that all processes end with exit code 0."""
        for worker in workers:
            worker.resume()
        for worker in workers:
            assert worker.wait_for_end() == 0, worker.all_logs
        assert self.server.wait_for_end() == 0, self.server.all_logs

    def finish_and_check(self, workers):
        """Resume the workers, and check that all processes succeed and each sample counted once in every epoch."""
        self.finish_all(workers)
        for worker in workers:
            assert worker.model["counts"].tolist() == [self.epochs] * SAMPLES

    def _start(self, folder, command, **environment):
        self._started.append(Machine(self._fork, folder, command, environment))
        return self._started[-1]

    def kill_all(self):
        for machine in self._started:
            machine.kill()


def make_joined_training(names, batch_size, numbers=3, epochs=1, vector=None):
    """Return a ``SharedTraining`` with workers on connections 0, 1, 2, ....

    The state is that of ``vector``, or ``numbers`` zeros.
    """
    numbers, summed = (vector.size, vector.summed) if vector is not None else (numbers, numbers)
    initial = vector.read() if vector is not None else torch.zeros(numbers)
    training = SharedTraining({name: SampleShare(1, batch_size) for name in names}, stuck_s=60.0)
    training.state.set_initial_state(initial, summed)
    for connection_id, name in enumerate(names):
        assert training.rejection_reason(name, epochs, numbers, summed, initial.dtype) is None
        training.join(name, connection_id)
    return training
