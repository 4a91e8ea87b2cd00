"""Training on several machines: whatever becomes of workers and server, each sample counts once in every epoch.

Every process is a real one. The model counts on which samples it was trained: see ``counted.py``.
"""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from paceline.train.asynchronous.plan import read_plan
from paceline.train.asynchronous.shards import Part
from paceline.train.asynchronous.training import Training as Kept
from paceline.train.asynchronous.vector import StateVector
from paceline.train.progress import parse_line

HERE = Path(__file__).parent
INCLUDE = HERE.parents[2] / "include"
SAMPLES, EPOCHS = 60, 4

pytestmark = pytest.mark.timeout(120)


class Process:
    """A server or a worker, and what it says."""

    def __init__(self, folder, command, **environment):
        self.output = folder / "output"
        self.output.mkdir(parents=True, exist_ok=True)
        self._said = folder / "said.txt"
        with self._said.open("w") as said:
            self.process = subprocess.Popen(
                [sys.executable, *map(str, command)],
                env={
                    **os.environ,
                    "PYTHONPATH": str(INCLUDE),
                    "PACELINE_OUTPUT": str(self.output),
                    "OMP_NUM_THREADS": "1",
                    **environment,
                },
                stdout=said,
                stderr=subprocess.STDOUT,
            )

    @property
    def said(self):
        return self._said.read_text()

    @property
    def progress(self):
        return [parsed for line in self.said.splitlines() if (parsed := parse_line(line))]

    def until(self, true, timeout_s=60):
        give_up = time.monotonic() + timeout_s
        while not true(self):
            assert self.process.poll() is None, self.said
            assert time.monotonic() < give_up, self.said
            time.sleep(0.02)

    def end(self, timeout_s=60):
        return self.process.wait(timeout_s)

    def go_on(self):
        (self.output / "hold").unlink()


class Training:
    """A training with processes for machines."""

    def __init__(self, folder, names, batch_s=0.01, loader_workers=0, stop_after=0, batch_size=3):
        self.folder = folder
        self.plan = folder / "plan.json"
        workers = {name: {"samples": 20, "batch_size": batch_size} for name in names}
        self.plan.write_text(json.dumps({"workers": workers}))
        self.script = [HERE / "counted.py", SAMPLES, EPOCHS, batch_s, loader_workers, stop_after]
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.started = []
        self.server = self.serve()

    def serve(self, *options):
        command = ["-m", "paceline.train.asynchronous", self.plan, "--port", self.port, *options]
        checkpoint = {"PACELINE_CHECKPOINT": str(self.folder / "checkpoint")}
        return self._started(Process(self.folder / "server", command, **checkpoint))

    def work(self, name, script=None, *, held=False, **environment):
        """A worker; one that is held ends no batch before it is told to go on."""
        if held:
            output = self.folder / name / "output"
            output.mkdir(parents=True, exist_ok=True)
            (output / "hold").touch()
        environment = {"PACELINE_SERVER": f"127.0.0.1:{self.port}", "PACELINE_WORKER": name} | environment
        return self._started(Process(self.folder / name, script or self.script, **environment))

    def _started(self, process):
        self.started.append(process)
        return process


@pytest.fixture
def train(tmp_path):
    trainings = []

    def begin(*names, **options):
        trainings.append(Training(tmp_path, names, **options))
        return trainings[-1]

    yield begin
    for training in trainings:
        for started in training.started:
            started.process.kill()
            started.process.wait()


def has_done(process, number):
    return process.progress and process.progress[-1].done > number


def has_begun(worker):
    return has_done(worker, 0)


def assert_each_counts_once(worker):
    model = torch.load(worker.output / "model.pt", weights_only=True)
    assert model["counts"].tolist() == [EPOCHS] * SAMPLES
    return int(model["batches"])


@pytest.mark.parametrize("loader_workers", [0, 2])
def test_workers_share_the_samples_and_end_with_the_same_model(train, loader_workers):
    training = train("a", "b", "c", batch_s=0.05, loader_workers=loader_workers)
    workers = [training.work(name) for name in "abc"]
    assert [worker.end() for worker in workers] == [0, 0, 0], [worker.said for worker in workers]
    assert training.server.end() == 0
    batches = {assert_each_counts_once(worker) for worker in workers}
    done = [worker.progress[-1].done for worker in workers]
    assert batches == {sum(done)}  # buffers add up as well
    assert all(worker.progress[-1].percent == 100 for worker in workers)
    last = training.server.progress[-1]
    assert (last.event, last.done, last.total) == ("finish", EPOCHS * SAMPLES, EPOCHS * SAMPLES)
    assert last.loss == 1.0


def test_a_worker_tells_where_its_time_has_gone(train):
    training = train("a", batch_s=0.05)
    worker = training.work("a", PACELINE_EPOCHS="2")  # not the four of the script
    assert worker.end() == 0, worker.said
    last = worker.progress[-1]
    assert last.spent["samples"] == 2 * SAMPLES
    batches = 2 * SAMPLES / 3
    assert 0.05 * batches <= last.spent["compute_s"] <= 0.08 * batches
    assert 0 < last.spent["update_s"] < 0.02 * batches
    assert training.server.progress[-1].spent == {}


def test_one_worker_does_it_all_and_sees_where_epochs_end(train):
    training = train("a", "b", batch_s=0.0)
    worker = training.work("a")
    assert worker.end() == 0, worker.said
    assert assert_each_counts_once(worker) == EPOCHS * SAMPLES / 3
    assert worker.progress[-1].metrics["ends"] == EPOCHS
    assert training.server.end() == 0


def test_a_worker_that_is_killed_loses_nothing_and_may_come_again(train):
    training = train("a", "b", "c", batch_s=0.03)
    workers = {name: training.work(name, held=name != "b") for name in "abc"}
    workers["b"].until(lambda worker: has_done(worker, random.randint(0, 8)))
    workers["b"].process.kill()
    training.server.until(lambda server: "b is lost" in server.said)
    workers["b"] = training.work("b")
    for name in "ac":
        workers[name].go_on()
    assert [worker.end() for worker in workers.values()] == [0, 0, 0], training.server.said
    assert training.server.end() == 0
    assert "samples go to the others; failure 1" in training.server.said
    assert training.server.progress[-1].metrics["failures"] == 1
    for worker in workers.values():
        assert_each_counts_once(worker)


def test_three_failures_exclude_a_worker_and_the_training_ends_without_it(train):
    training = train("a", "b", batch_s=0.05)
    other = training.work("a", held=True)
    for failure in (1, 2, 3):
        worker = training.work("b")
        worker.until(has_begun)
        worker.process.kill()
        training.server.until(lambda server, text=f"failure {failure}": text in server.said)
    assert "leaves it out for the rest of this training" in training.server.said
    worker = training.work("b")
    assert worker.end() == 5
    assert "b has failed 3 times and is left out" in worker.said
    other.go_on()
    assert other.end() == 0
    assert_each_counts_once(other)


def test_a_server_that_is_killed_goes_on_from_what_it_has_saved(train):
    training = train("a", "b", batch_s=0.05)
    workers = [training.work(name) for name in "ab"]
    training.server.until(lambda server: server.progress and server.progress[-1].done > 20)
    training.server.process.send_signal(signal.SIGTERM)
    assert training.server.end() == 143
    training.server = training.serve()
    training.server.until(lambda server: server.progress and server.progress[-1].done > 40)
    training.server.process.kill()  # without a word
    training.server.end()
    training.server = training.serve()
    assert [worker.end() for worker in workers] == [0, 0], training.server.said
    assert training.server.end() == 0
    assert "going on from checkpoint" in training.server.said
    for worker in workers:
        assert "looking for it" in worker.said
        assert_each_counts_once(worker)


def test_a_worker_that_is_asked_to_end_does_so_without_blame(train):
    training = train("a", "b", batch_s=0.05)
    leaving, staying = training.work("a"), training.work("b", held=True)
    leaving.until(lambda worker: has_done(worker, 2))
    leaving.process.send_signal(signal.SIGTERM)
    assert leaving.end() == 143
    staying.go_on()
    assert staying.end() == 0
    assert training.server.end() == 0
    assert training.server.progress[-1].metrics["failures"] == 0
    assert_each_counts_once(staying)


def test_a_worker_that_hangs_is_waited_for_no_longer_than_is_reasonable(train):
    training = train("a", "b", batch_s=0.05)
    training.server.process.kill()
    training.server.end()
    training.server = training.serve("--stuck-s", "1")
    hanging = training.work("a")
    hanging.until(lambda worker: has_done(worker, 2))
    hanging.process.send_signal(signal.SIGSTOP)
    other = training.work("b")
    training.server.until(lambda server: server.progress[-1].done == EPOCHS * SAMPLES)
    assert "a has not come back with a batch" in training.server.said
    hanging.process.send_signal(signal.SIGCONT)
    assert [hanging.end(), other.end(), training.server.end()] == [0, 0, 0]
    for worker in (hanging, other):
        assert_each_counts_once(worker)


def test_who_hangs_when_asked_for_the_order_of_samples_keeps_nobody_from_it():
    training = Kept({name: Part(2, batch_size=4) for name in "ab"}, stuck_s=0.0)
    for guest, name in enumerate("ab"):
        assert training.why_not(name, 1, 3) is None
        training.begin_with(torch.zeros(3))
        training.join(name, guest)
    assert training.lend("a", 0)["kind"] == "order"
    time.sleep(0.01)
    training.take_back_stuck()
    assert training.lend("b", 1)["kind"] == "order"
    training.begin_epoch("a", 0, [0, 1])  # too late
    training.begin_epoch("b", 1, [3, 2])
    assert sorted(training.lend("b", 1)["indices"]) == [2, 3]


def test_a_batch_that_takes_longer_than_is_reasonable_counts_in_the_end(monkeypatch):
    now_s = [0.0]
    monkeypatch.setattr("paceline.train.asynchronous.training.time.monotonic", lambda: now_s[0])
    training = Kept({"a": Part(4, batch_size=4)}, stuck_s=60.0)
    assert training.why_not("a", 1, 3) is None
    training.begin_with(torch.zeros(3))
    training.join("a", 0)
    assert training.lend("a", 0)["kind"] == "order"
    training.begin_epoch("a", 0, [0, 1, 2, 3])
    for counts in (False, True):
        number = training.lend("a", 0)["number"]
        now_s[0] += 100.0
        training.take_back_stuck()
        assert training.take_in("a", 0, number, training._spread.version, torch.ones(3), {}) is counts


BUFFERS = {
    "infinite": torch.full((2, 2), float("-inf")).triu(1),
    "complex": torch.polar(torch.ones(2), torch.tensor([0.5, 1.0])),
    "large and whole": torch.tensor([2**24 + 1, 5]),
    "bool": torch.tensor([True, False]),
}


@pytest.mark.parametrize("buffer", BUFFERS.values(), ids=BUFFERS)
def test_buffers_of_any_kind_come_back_as_they_were(buffer):
    module = torch.nn.Linear(1, 1)
    module.register_buffer("kept", buffer.clone())
    vector = StateVector({"model": module})
    before = vector.read()
    assert len(before) == vector.size
    with torch.no_grad():
        module.weight += 1.0
    change = vector.change_since(before)
    assert change.isfinite().all()
    assert change.sum().item() == pytest.approx(1.0)
    vector.write(before + change)
    assert torch.equal(module.kept, buffer)


@pytest.mark.parametrize("stop_after", [20, -20])
def test_an_early_stop_of_one_ends_the_training_of_all_with_the_same_model(train, stop_after):
    training = train("a", "b", batch_s=0.1, stop_after=stop_after)
    workers = [training.work(name) for name in "ab"]
    assert [worker.end() for worker in workers] == [0, 0], [worker.said for worker in workers]
    assert training.server.end() == 0
    first, second = (torch.load(worker.output / "model.pt", weights_only=True) for worker in workers)
    assert first["counts"].tolist() == second["counts"].tolist()
    assert first["counts"].sum() < EPOCHS * SAMPLES
    assert training.server.progress[-1].percent == 100


def test_what_is_not_finite_spoils_nothing(train):
    training = train("a", "b")
    other = training.work("a", held=True)
    spoiling = training.work("b", [HERE / "counted.py", SAMPLES, EPOCHS, 0, 0, 0, "nan"])
    assert spoiling.end() == 5
    other.go_on()
    assert "b is lost (what it has learned is not finite" in training.server.said
    assert "b has failed 3 times and is left out" in spoiling.said
    assert other.end() == 0
    assert_each_counts_once(other)


def test_who_does_not_belong_is_sent_away_and_told_why(train):
    training = train("a", "b")
    training.work("a", held=True)
    training.server.until(lambda server: "a trains" in server.said)
    stranger = training.work("stranger")
    other_model = training.work("b", [HERE / "counted.py", SAMPLES + 1, EPOCHS, 0])
    assert (stranger.end(), other_model.end()) == (7, 7)
    assert "the schedule gives nothing to stranger" in stranger.said
    assert f"the model of b has {SAMPLES + 2} numbers, that of the others {SAMPLES + 1}" in other_model.said
    other_length = training.work("b", [HERE / "counted.py", SAMPLES, EPOCHS + 1, 0])
    assert other_length.end() == 7
    assert f"b is to train {EPOCHS + 1} epochs, the others {EPOCHS}" in other_length.said


def test_who_has_not_the_key_is_not_let_in_and_who_talks_nonsense_harms_nobody(train, monkeypatch):
    monkeypatch.setenv("PACELINE_SERVER_KEY", "the right one")
    training = train("a", batch_s=0.05)
    stranger = training.work("a", PACELINE_SERVER_KEY="a wrong one")
    training.server.until(lambda server: "it does not have the key of this training" in server.said)
    stranger.process.kill()
    monkeypatch.delenv("PACELINE_SERVER_KEY")
    for nonsense in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 100, b"\x00\x00\x00\x02{}", b"\x7f\xff\xff\xff"):
        with socket.create_connection(("127.0.0.1", training.port)) as connection:
            connection.sendall(nonsense)
    training.server.until(lambda server: server.said.count("a connection has ended") >= 4)
    with ExitStack() as silent:
        for _ in range(100):  # more than may come at the same time: they are waited for, though not for long
            silent.enter_context(socket.create_connection(("127.0.0.1", training.port)))
        worker = training.work("a", PACELINE_SERVER_KEY="the right one")
        assert worker.end() == 0, worker.said
    assert training.server.end() == 0
    assert_each_counts_once(worker)


def test_a_server_that_nobody_comes_to_gives_up(train):
    training = train("a")
    training.server.process.kill()
    training.server.end()
    training.server = training.serve("--patience-s", "0.5")
    assert training.server.end() == 4
    assert "nobody is there to train" in training.server.said


@pytest.mark.timeout(240)
def test_three_workers_learn_as_well_as_one_alone(train, tmp_path):
    # After 16 epochs the order of the samples alone makes a point of difference, after 64 a third of one.
    script = [HERE / "digits_model.py", 64]
    alone = Process(tmp_path / "alone", script)
    assert alone.end(120) == 0, alone.said
    training = train("a", "b", "c", batch_size=16)
    workers = [training.work(name, script, held=True) for name in "abc"]
    training.server.until(lambda server: all(f"{name} trains" in server.said for name in "abc"))
    for worker in workers:
        worker.go_on()
    assert [worker.end(120) for worker in workers] == [0, 0, 0], training.server.said
    accuracy = [json.loads((one.output / "accuracy.json").read_text()) for one in (alone, *workers)]
    assert accuracy[0] > 0.95
    assert min(accuracy[1:]) == max(accuracy[1:]) > accuracy[0] - 0.01
    assert all(worker.progress[-1].done > 500 for worker in workers)  # of 5,056 batches: all of them took part


def test_the_server_ends_what_has_levelled_off_and_a_restarted_one_remembers_the_curve(train):
    training = train("a", "b")
    workers = [training.work(name, [HERE / "levels_off.py", SAMPLES, 200, 0.005]) for name in "ab"]
    training.server.until(lambda server: has_done(server, 6 * SAMPLES))
    training.server.process.send_signal(signal.SIGTERM)  # it saves what it has; killed, it would have an older curve
    assert training.server.end() == 143
    training.server = training.serve()
    assert [worker.end() for worker in workers] == [0, 0], training.server.said
    assert training.server.end() == 0
    counts = torch.load(workers[0].output / "model.pt", weights_only=True)["counts"].tolist()
    assert set(counts) == {counts[0]}  # every epoch that has begun is done
    assert 9 <= counts[0] <= 16  # half of what is missing after 10 epochs is a gain of 0.005 in one
    assert "the training ends after" in training.server.said
    first, last = training.server.progress[0], training.server.progress[-1]
    assert first.epochs < 200
    assert (last.epochs, last.percent) == (counts[0], 100)


@pytest.mark.parametrize(
    "plan",
    [
        "",
        "[]",
        "{}",
        '{"workers": {"a": {"samples": 1, "batch_size": 1.5}}}',
        '{"workers": {}}',
        '{"workers": {"a": {"samples": 0, "batch_size": 1}}}',
        '{"workers": {"a": 3}}',
    ],
)
def test_a_plan_that_is_none_is_refused(plan):
    with pytest.raises(ValueError, match=r"^plan: got .*, expected \{\"workers\""):
        read_plan(plan)
