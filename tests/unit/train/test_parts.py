"""The state of a training in several processes that come and go: whatever becomes of them, each update counts once."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from statistics import fmean

import pytest
import torch

from paceline.train.asynchronous.part import Part, PartServer
from paceline.train.asynchronous.peer import reach
from paceline.train.asynchronous.plan import EXIT_BROKEN
from paceline.train.asynchronous.shards import Part as Share
from paceline.train.asynchronous.training import Training as Kept
from paceline.train.progress import parse_line

HERE = Path(__file__).parent
INCLUDE = HERE.parents[2] / "include"
SAMPLES, EPOCHS = 60, 8

pytestmark = pytest.mark.timeout(120)


class Training:
    """A parameter server and workers in processes of their own; those that hold parts in threads of this one."""

    def __init__(self, folder, workers, batch_s=0.02, script="counted.py"):
        self.folder, self.workers = folder, {}
        (folder / "plan.json").write_text(
            json.dumps({"workers": {name: {"samples": 20, "batch_size": 3} for name in workers}})
        )
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self.server = self.serve()
        for name in workers:
            arguments = [HERE / script, SAMPLES, EPOCHS, batch_s]
            self.workers[name] = self._start(name, arguments, PACELINE_SERVER=self.address, PACELINE_WORKER=name)

    def serve(self):
        command = ["-m", "paceline.train.asynchronous", self.folder / "plan.json", "--port"]
        checkpoint = str(self.folder / "checkpoint")
        return self._start("server", [*command, self.address.rpartition(":")[2]], PACELINE_CHECKPOINT=checkpoint)

    def hold(self, name):
        """A process that holds a part, in a thread."""
        part = PartServer(name, self.address, "127.0.0.1")
        thread = threading.Thread(target=part.run, daemon=True)
        thread.start()
        return part, thread

    def hold_in_a_process(self, name):
        command = ["-m", "paceline.train.asynchronous.part"]
        return self._start(name, command, PACELINE_SERVER=self.address, PACELINE_WORKER=name)

    def said(self, name):
        return (self.folder / name / "said.txt").read_text()

    def newest(self):
        parsed = [one for line in self.said("server").splitlines() if (one := parse_line(line))]
        return parsed[-1] if parsed else None

    def until(self, true, timeout_s=60):
        give_up = time.monotonic() + timeout_s
        while not ((newest := self.newest()) and true(newest)):
            assert time.monotonic() < give_up, self.said("server")
            time.sleep(0.01)

    def models(self):
        """The models of all workers when all is done."""
        for name, worker in self.workers.items():
            assert worker.wait(60) == 0, self.said(name)
        assert self.server.wait(60) == 0, self.said("server")
        return [torch.load(self.folder / name / "output" / "model.pt", weights_only=True) for name in self.workers]

    def _start(self, name, command, **environment):
        output = self.folder / name / "output"
        output.mkdir(parents=True, exist_ok=True)
        own = {"PYTHONPATH": str(INCLUDE), "PACELINE_OUTPUT": str(output), "OMP_NUM_THREADS": "1"}
        with (self.folder / name / "said.txt").open("a") as said:
            started = subprocess.Popen(
                [sys.executable, *map(str, command)],
                env={**os.environ, **own, **environment},
                stdout=said,
                stderr=subprocess.STDOUT,
            )
        self.started = [*getattr(self, "started", []), started]
        return started

    def end(self):
        for started in self.started:
            started.kill()
            started.wait()


@pytest.fixture
def train(tmp_path):
    trainings = []

    def begin(*workers, **options):
        trainings.append(Training(tmp_path, workers, **options))
        return trainings[-1]

    yield begin
    for training in trainings:
        training.end()


def come_and_go(training, times):
    """Somebody holds a part of the state for some batches, so often."""
    training.until(lambda newest: newest.done > 0)
    for number in range(times):
        part, thread = training.hold(f"ps-{number}")
        while part._part.read() is None:
            time.sleep(0.001)
        time.sleep(0.05)
        part.leave()
        thread.join(10)
        assert not thread.is_alive()
    assert training.newest().done < EPOCHS * SAMPLES, "all of it while they trained"


def assert_each_counts_once(training):
    for model in training.models():
        assert model["counts"].tolist() == [EPOCHS] * SAMPLES


def test_a_part_of_the_state_comes_and_goes_twenty_times_and_no_update_is_lost(train):
    training = train("a", "b", "c", batch_s=0.05)
    come_and_go(training, 20)
    assert_each_counts_once(training)
    assert training.said("server").count("holds a part of the state;") == 20
    assert all("lost" not in training.said(name) for name in ("server", "a", "b", "c"))


def test_what_comes_and_goes_leaves_the_loss_as_it_would_be(tmp_path):
    def curve(name, times):
        folder = tmp_path / name
        folder.mkdir()
        training = Training(folder, ["a", "b", "c"], batch_s=0.05, script="learned.py")
        try:
            if times:
                come_and_go(training, times)
            training.models()
            lines = [line.split() for name in training.workers for line in training.said(name).splitlines()]
            # Who comes late, on a slow machine, tells of later epochs alone.
            told = [
                [float(loss) for _, of, loss in (line for line in lines if line[:1] == ["curve"]) if int(of) == epoch]
                for epoch in range(EPOCHS)
            ]
            return torch.tensor([fmean(losses) for losses in told])
        finally:
            training.end()

    one, other, changed = (curve(name, times) for name, times in (("one", 0), ("other", 0), ("changed", 20)))
    assert changed[-1] < 0.7 * changed[0], "it has learned"
    noise = float((one - other).abs().max())
    furthest = max(float((changed - plain).abs().max()) for plain in (one, other))
    assert furthest <= 3 * noise + 0.02


def test_three_hold_a_part_each_and_are_let_go_at_the_end(train):
    training = train("a", "b")
    threads = [training.hold(f"ps-{number}")[1] for number in (1, 2, 3)]
    training.until(lambda newest: newest.metrics.get("servers") == 4)
    assert_each_counts_once(training)
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


def test_a_process_with_a_part_that_is_asked_to_end_gives_it_back_first(train):
    training = train("a", "b", batch_s=0.3)
    parts = [training.hold_in_a_process(f"ps-{number}") for number in (1, 2, 3)]
    training.until(lambda newest: newest.metrics.get("servers") == 4)
    for number, part in enumerate(parts, start=1):
        part.send_signal(signal.SIGTERM)
        assert part.wait(20) == 0, training.said(f"ps-{number}")
        training.until(lambda newest, left=4 - number: newest.metrics.get("servers", 1) == left)
    assert_each_counts_once(training)
    assert "lost" not in training.said("server"), "nobody is blamed for what has left"


def test_a_part_that_is_asked_to_end_before_it_has_found_the_server_just_ends(train):
    part = PartServer("ps-1", "127.0.0.1:1", "127.0.0.1")
    thread = threading.Thread(target=part.run, daemon=True)
    thread.start()
    part.leave()
    thread.join(10)
    assert not thread.is_alive()


def test_a_change_of_a_wrong_length_or_for_other_ranges_does_not_count():
    kept = Kept({"a": Share(2, batch_size=4)}, stuck_s=60.0)
    assert kept.why_not("a", 1, 3) is None
    kept.begin_with(torch.zeros(3))
    kept.join("a", 1)
    assert kept.lend("a", 1)["kind"] == "order"
    kept.begin_epoch("a", 1, [0, 1, 2])
    number, version = kept.lend("a", 1)["number"], kept.own()[0]["version"]
    with pytest.raises(ValueError, match="change: got 1 numbers, expected 3"):
        kept.take_in("a", 1, number, version, torch.ones(1), {})
    assert kept.take_in("a", 1, number, version + 1, torch.ones(3), {}) is None
    assert kept.progress("progress").done == 0
    assert kept.take_in("a", 1, number, version, torch.ones(3), {})
    assert kept.snapshot().tolist() == [1.0, 1.0, 1.0]


def test_a_part_that_is_killed_sends_all_back_to_what_was_saved_and_the_rest_is_trained_again(train):
    training = train("a", "b", batch_s=0.1)
    part = training.hold_in_a_process("ps-1")
    training.until(lambda newest: newest.metrics.get("servers") == 2 and newest.done > SAMPLES)
    part.kill()
    assert training.server.wait(30) == EXIT_BROKEN, training.said("server")
    assert "a part of the state is lost" in training.said("server")
    training.server = training.serve()
    assert_each_counts_once(training)


def test_what_is_sent_for_a_part_counts_once_when_it_is_asked_to():
    part = Part()
    with pytest.raises(ValueError, match="change: got 2 numbers, expected 0 at most"):
        part.room(2)
    part.hold(1, torch.zeros(2), whole=4)
    assert part.take("a", 1, 7, torch.ones(2))
    assert not part.take("b", 0, 8, torch.ones(2)), "for what was held before"
    assert not part.take("b", 1, 8, torch.ones(3))
    assert part.commit("a", 7)
    assert not part.commit("a", 7)
    assert not part.commit("b", 8)
    assert part.read(1).tolist() == [1.0, 1.0]
    assert part.read(2) is None
    with pytest.raises(ValueError, match="not finite"):
        part.take("a", 1, 9, torch.tensor([1.0, float("nan")]))
    with pytest.raises(ValueError, match="change: got 5 numbers, expected 4 at most"):
        part.room(5)


def test_who_has_not_the_key_gets_nothing_from_a_part_and_nonsense_costs_the_connection():
    server = PartServer("ps-1", "127.0.0.1:1", "127.0.0.1", b"secret")
    port = server.port
    with pytest.raises(Exception, match="key"):
        reach("127.0.0.1", port, b"another")
    for words in ({"kind": "pull"}, {"kind": "steal"}, {"worker": "a"}, [1, 2]):
        peer = reach("127.0.0.1", port, b"secret")
        peer.send({"worker": "a"})
        peer.send(words)
        with pytest.raises(Exception, match=r"ended|reset"):
            peer.receive()
        peer.close()


def test_a_part_that_finds_no_server_says_so(capsys):
    assert PartServer("ps-1", "127.0.0.1:1", "127.0.0.1", patience_s=0.1).run() == 6
    assert "no parameter server at 127.0.0.1:1" in capsys.readouterr().err
    with pytest.raises(ValueError, match="PACELINE_SERVER: got 'nowhere'"):
        PartServer("ps-1", "nowhere", "127.0.0.1")


def test_a_server_ends_with_its_code_whatever_its_guests_threads_are_at():
    program = """
import threading
from paceline.train.asynchronous.reception import end_process

threading.Thread(target=threading.Event().wait).start()  # Python's own way out would wait for it, for ever
print("its last word", end="")
end_process(8)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (8, "its last word"), ended.stderr
