"""In training on several machines, each sample counts once in every epoch, even if workers or the server are killed.

All processes are real. The model counts how often each sample was trained on, see ``counted.py``.
"""

import signal
import socket
import struct
import threading
from contextlib import ExitStack, suppress
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from paceline.train import _session, checkpoint, track
from paceline.train.job import EXIT_REJECTED
from paceline.train.parameter_server import handshake
from paceline.train.parameter_server import worker as worker_module
from paceline.train.parameter_server._training import SharedTraining
from paceline.train.parameter_server._vector import StateVector, apply_update
from paceline.train.parameter_server.peer import connect
from paceline.train.parameter_server.plan import read_plan
from paceline.train.parameter_server.shards import SampleShare

from .machines import LIMIT_S, SAMPLES, make_joined_training

EPOCHS = 4


@pytest.mark.parametrize("loader_workers", [0, 2])
def test_workers_share_samples_and_end_with_the_same_model(start_training, loader_workers):
    training = start_training("a", "b", "c")
    workers = training.start_workers("abc", {"workers": loader_workers})
    training.finish_and_check(workers)
    batches = {int(worker.model["batches"]) for worker in workers}
    assert batches == {sum(worker.newest_progress.done for worker in workers)}  # whole-number buffers are added up
    assert {int(worker.model["rows"]) for worker in workers} == {EPOCHS * SAMPLES}
    (average,) = {float(worker.model["average"]) for worker in workers}
    assert 0.9 <= average <= 1.0, "floating-point buffers are averaged: a sum would exceed 1"
    assert all(worker.newest_progress.percent == 100 for worker in workers)
    last = training.server.newest_progress
    assert (last.event, last.done, last.total) == ("finish", EPOCHS * SAMPLES, EPOCHS * SAMPLES)
    assert (last.loss, last.spent) == (1.0, {})


def test_worker_that_gets_no_batches_ends_successfully(start_training):
    training = start_training("a", "b", epochs=1)
    first = training.start_worker("a", hold=SAMPLES // 3 - 1)
    first.wait_until_held(after=SAMPLES // 3 - 1)  # the held worker has the last batch
    late = training.start_worker("b")
    training.server.wait_until_logged("b has joined")
    first.resume()
    training.finish_and_check([first, late])
    assert (late.newest_progress.event, late.newest_progress.percent) == ("finish", 100)


def test_worker_reports_epoch_ends_and_time_spent(start_training, monkeypatch, clock):
    training = start_training("a", "b")
    for name, value in (
        ("SERVER", training.address),
        ("WORKER", "a"),
        ("EPOCHS", "2"),
    ):  # the script trains for four epochs
        monkeypatch.setenv(f"PACELINE_{name}", value)
    monkeypatch.setattr(worker_module, "time", SimpleNamespace(monotonic=clock))
    checkpoint(model=torch.nn.Linear(1, 1))
    ends = 0
    for _ in (loop := track(DataLoader(TensorDataset(torch.arange(SAMPLES)), 4, shuffle=True), epochs=EPOCHS)):
        clock.now_s += 0.05
        ends += loop.epoch_end
    assert ends == 2
    spent = _session.current.worker.spent
    assert (spent["samples"], spent["batches"]) == (2 * SAMPLES, 2 * SAMPLES / 3)
    assert spent["compute_s"] == pytest.approx(0.05 * spent["batches"])
    assert training.server.wait_for_end() == 0


def test_killed_worker_loses_no_samples_and_can_rejoin(start_training):
    training = start_training("a", "b", "c")
    workers = training.start_workers("abc")
    killed = workers[1]
    killed.hold(after=5)
    killed.wait_until_held(5)
    killed.kill()
    training.server.wait_until_logged("b is lost")
    workers[1] = training.start_worker("b")
    training.server.wait_until_logged("b has joined: 3 workers (failures so far: 1)")
    training.finish_and_check(workers)
    assert "samples go to other workers, failure 1" in training.server.log
    assert training.server.newest_progress.metrics["failures"] == 1


def test_worker_is_excluded_after_three_failures(start_training):
    training = start_training("a", "b")
    (other,) = training.start_workers("a")
    for failure in (1, 2, 3):
        worker = training.start_worker("b", hold=failure)
        worker.wait_until_held(failure)
        worker.kill()
        training.server.wait_until_logged(f"failure {failure}")
    assert "excluded from the rest of the job" in training.server.log
    worker = training.start_worker("b")
    assert worker.wait_for_end() == 5
    assert "b has failed 3 times and is excluded" in worker.log
    training.finish_and_check([other])


def test_worker_whose_code_raises_in_three_processes_is_excluded(start_training):
    training = start_training("a", "b")
    (other,) = training.start_workers("a")
    for failure in (1, 2, 3):
        worker = training.start_worker("b", {"fail_after": 2})
        assert worker.wait_for_end() == 1
        assert "MemoryError: out of memory" in worker.log
        training.server.wait_until_logged(f"failure {failure}")
    assert "b is lost (its training code has left the loop during a batch)" in training.server.log
    assert training.start_worker("b", {"fail_after": 2}).wait_for_end() == 5
    training.finish_and_check([other])


@pytest.mark.parametrize(
    ("options", "code", "cause"),
    [({"leave_after": 2}, EXIT_REJECTED, "a break at line "), ({"fail_after": -2}, 1, "an exception at line ")],
)
def test_worker_whose_code_leaves_the_loop_early_fails_by_name(start_training, options, code, cause):
    training = start_training("a", "b")
    (other,) = training.start_workers("a")
    worker = training.start_worker("b", options)
    assert worker.wait_for_end() == code
    assert f"left the track() loop before the end of training, by {cause}" in worker.log
    assert "stop_early()" in worker.log
    training.server.wait_until_logged("failure 1")
    training.finish_and_check([other])


def test_killed_server_resumes_from_its_checkpoint(start_training):
    training = start_training("a", "b")
    workers = training.start_workers("ab", hold=4)
    training.server.wait_until_done(24)
    training.server.process.terminate()
    assert training.server.wait_for_end() == 143
    training.start_server()
    for worker in workers:
        worker.hold(after=8)
    training.server.wait_until_done(48)
    training.server.kill()  # a killed server writes no final checkpoint
    training.start_server()
    training.finish_and_check(workers)
    assert "resuming from checkpoint" in training.server.log
    assert all("reconnecting" in worker.log for worker in workers)


def test_restarted_server_ends_after_the_last_worker_has_reconnected(start_training):
    training = start_training("a", "b")
    late, other = training.start_workers("ab", hold=4)
    training.server.wait_until_done(24)
    training.server.process.terminate()
    assert training.server.wait_for_end() == 143
    training.start_server()
    training.server.wait_until(
        lambda server: len(server.progress) > 1
    )  # the server has saved a checkpoint without connected workers
    training.server.kill()
    training.start_server()
    other.resume()
    assert other.wait_for_end() == 0, other.all_logs
    training.server.wait_until_done(EPOCHS * SAMPLES)
    training.finish_and_check([other, late])


def test_worker_restarted_after_the_end_gets_the_trained_model_from_the_restarted_server(start_training):
    training = start_training("a", epochs=1)
    training.finish_and_check([training.start_worker("a")])
    training.start_server()
    worker = training.start_worker("a")
    training.finish_and_check([worker])
    assert worker.newest_progress.percent == 100


def test_worker_ended_by_sigterm_is_not_a_failure(start_training):
    training = start_training("a", "b")
    leaving, staying = training.start_workers("ab")
    leaving.hold(after=3)
    leaving.wait_until_held(3)
    leaving.process.terminate()
    leaving.resume()
    assert leaving.wait_for_end() == 143
    training.server.wait_until_logged("a has left: 1 worker")
    assert "has joined: 2 workers" in training.server.log
    training.finish_and_check([staying])
    assert "b has left" not in training.server.log, "training is over"
    assert training.server.newest_progress.metrics["failures"] == 0


def test_sigterm_ends_a_worker_that_waits_for_a_batch(start_training):
    training = start_training("a", "b", epochs=1)
    first = training.start_worker("a", hold=SAMPLES // 3 - 1)
    first.wait_until_held(after=SAMPLES // 3 - 1)  # the held worker has the last batch
    waiting = training.start_worker("b")
    training.server.wait_until_logged("b has joined")
    waiting.process.terminate()
    assert waiting.wait_for_end() == 143
    first.resume()
    training.finish_and_check([first])
    assert training.server.newest_progress.metrics["failures"] == 0


@pytest.mark.parametrize("joined", [False, True])
def test_sigterm_ends_a_worker_that_has_no_server(start_training, joined):
    training = start_training("a")
    worker = training.start_worker("a", hold=2) if joined else None
    if worker is not None:
        worker.wait_until_held(2)
    training.server.kill()
    if worker is not None:
        worker.resume()
        worker.wait_until_logged("reconnecting")
    else:
        worker = training.start_worker("a")
        worker.wait_until(lambda machine: machine.progress)
    worker.process.terminate()
    assert worker.wait_for_end() == 143


def test_batch_of_hanging_worker_is_reassigned(start_training):
    training = start_training("a", "b", options=("--stuck-s", "1"))
    hanging, other = training.start_workers("ab")
    hanging.wait_until_held(0)  # the worker has taken a batch
    hanging.process.send_signal(signal.SIGSTOP)
    hanging.resume()
    other.resume()
    training.server.wait_until_done(EPOCHS * SAMPLES)
    assert "a has not returned a batch" in training.server.log
    hanging.process.send_signal(signal.SIGCONT)
    training.finish_and_check([hanging, other])


@pytest.fixture
def server_clock(monkeypatch, clock):
    """Replace the clock of a server in this process by a manual clock."""
    monkeypatch.setattr("paceline.train.parameter_server._training.time", SimpleNamespace(monotonic=clock))
    return clock


def test_order_request_to_hanging_worker_is_reassigned(server_clock):
    training = make_joined_training("ab", batch_size=4)
    assert training.next_message("a", 0)["kind"] == "order"
    server_clock.now_s += 61.0
    training.reassign_stuck()
    assert training.next_message("b", 1)["kind"] == "order"
    training.start_epoch("a", 0, [0, 1])  # too late: the server has asked b for the sample order
    training.start_epoch("b", 1, [3, 2])
    assert sorted(training.next_message("b", 1)["indices"]) == [2, 3]


def test_order_of_slow_worker_counts_after_a_second_request(server_clock):
    training = make_joined_training("a", batch_size=4)
    for _ in range(2):
        assert training.next_message("a", 0)["kind"] == "order"
        server_clock.now_s += 100.0
        training.reassign_stuck()
        training.start_epoch("a", 0, [0, 1])
    assert training.next_message("a", 0)["kind"] == "lease"


def test_worker_with_the_batch_for_which_the_others_wait_is_named_once(server_clock, capfd):
    training = make_joined_training("ab", batch_size=2)
    assert training.next_message("a", 0)["kind"] == "order"
    training.start_epoch("a", 0, [0, 1, 2, 3])
    first = training.next_message("a", 0)["number"]
    server_clock.now_s += 9.0
    training.reassign_stuck()
    assert "wait for" not in capfd.readouterr().err, "b still has samples"
    second = training.next_message("b", 1)["number"]
    assert training.apply_change("b", 1, second, training.state.version, torch.ones(3), {})
    for _ in range(2):
        training.reassign_stuck()
    assert capfd.readouterr().err.count("the other workers wait for a batch of a") == 1
    assert training.apply_change("a", 0, first, training.state.version, torch.ones(3), {})


def test_worker_that_does_not_learn_of_the_end_is_named(start_training):
    training = start_training("a", "b", epochs=1, options=("--stuck-s", "1"))
    frozen, other = training.start_workers("ab")
    frozen.wait_until_held(0)
    frozen.process.send_signal(signal.SIGSTOP)
    other.resume()
    training.server.wait_until_logged("training is over: waiting up to 30 s for an answer of a")
    frozen.resume()
    frozen.process.send_signal(signal.SIGCONT)
    training.finish_and_check([frozen, other])


def test_batch_of_slow_worker_counts_after_a_reassignment(server_clock):
    training = make_joined_training("a", batch_size=4)
    assert training.next_message("a", 0)["kind"] == "order"
    training.start_epoch("a", 0, [0, 1, 2, 3])
    for counts in (False, True):
        number = training.next_message("a", 0)["number"]
        server_clock.now_s += 100.0
        training.reassign_stuck()
        assert training.apply_change("a", 0, number, training.state.version, torch.ones(3), {}) is counts


def test_failures_of_a_hanging_worker_are_told_apart_from_others(server_clock, capsys):
    training = make_joined_training("ab", batch_size=1)
    assert training.next_message("b", 1)["kind"] == "order"
    training.start_epoch("b", 1, [0, 1, 2, 3])
    assert training.next_message("a", 0)["kind"] == "lease"
    server_clock.now_s += 61.0
    training.reassign_stuck()
    for connection_id in (0, 2, 3):
        training.disconnect("a", connection_id, "the connection was lost")
        if connection_id < 3:
            training.join("a", max(connection_id + 1, 2))
    hung = "the connection was lost, after it had hung for 61 s: frozen, or its machine is overloaded"
    lost = [line for line in capsys.readouterr().err.splitlines() if "a is lost" in line]
    assert [hung in line for line in lost[:2]] == [True, False]
    assert lost[2].endswith(f"rest of the job: {hung}; the connection was lost; the connection was lost")
    reason = training.rejection_reason("a", 1, 3, 3, torch.float32)
    assert reason == f"a has failed 3 times and is excluded from the rest of the job: {lost[2].partition('job: ')[2]}"


def test_reasons_of_a_worker_s_failures_outlive_the_server():
    training = make_joined_training("ab", batch_size=1)
    assert training.next_message("b", 1)["kind"] == "order"
    training.start_epoch("b", 1, [0, 1, 2, 3])
    training.disconnect("a", 0, "out of memory")
    restarted = SharedTraining({name: SampleShare(1, 1) for name in "ab"}, stuck_s=60.0)
    restarted.restore(training.content())
    for connection_id in (5, 6):
        restarted.join("a", connection_id)
        restarted.disconnect("a", connection_id, "the connection was lost")
    reason = restarted.rejection_reason("a", 1, 3, 3, torch.float32)
    assert reason.endswith("rest of the job: out of memory; the connection was lost; the connection was lost")


@pytest.mark.parametrize("names", ["ca", "c", "ab", "abc"])
def test_restarted_server_may_have_another_plan(names):
    training = make_joined_training("ab", batch_size=1)
    assert training.next_message("b", 1)["kind"] == "order"
    training.start_epoch("b", 1, [0, 1, 2, 3])
    number = training.next_message("a", 0)["number"]
    assert training.apply_change("a", 0, number, training.state.version, torch.ones(3), {})
    restarted = SharedTraining({name: SampleShare(1, 1) for name in names}, stuck_s=60.0)
    restarted.restore(training.content())
    assert not restarted.all_excluded
    assert restarted.uninformed == sorted({*names} & {*"ab"})
    for connection_id, name in enumerate(names):
        assert restarted.rejection_reason(name, 1, 3, 3, torch.float32) is None
        restarted.join(name, connection_id)
    for _ in range(3):
        number = restarted.next_message(names[0], 0)["number"]
        assert restarted.apply_change(names[0], 0, number, restarted.state.version, torch.ones(3), {})
    assert restarted.ended
    assert restarted.progress_of(names[0])["samples"] == 4


BUFFERS = {
    "infinite": torch.full((2, 2), float("-inf")).triu(1),
    "complex": torch.polar(torch.ones(2), torch.tensor([0.5, 1.0])),
    "large and whole": torch.tensor([2**24 + 1, 5]),
    "bool": torch.tensor([True, False]),
}


@pytest.mark.parametrize("buffer", BUFFERS.values(), ids=BUFFERS)
def test_buffers_of_any_dtype_survive_conversion_to_a_state_vector(buffer):
    module = torch.nn.Linear(1, 1)
    module.register_buffer("kept", buffer.clone())
    vector = StateVector({"model": module})
    before = vector.read()
    assert len(before) == vector.size
    with torch.no_grad():
        module.weight += 1.0
    update = vector.update_since(before)
    assert update.isfinite().all()
    after = before.clone()
    apply_update(after, update, vector.summed, staleness=7)
    assert torch.where(after == before, 0.0, after - before).sum().item() == pytest.approx(1.0)
    vector.write(after)
    assert torch.equal(module.kept, buffer)


def test_buffer_that_becomes_infinite_makes_the_update_infinite():
    module = torch.nn.BatchNorm1d(1)
    vector = StateVector({"model": module})
    before = vector.read()
    module.running_var.fill_(float("inf"))
    assert not vector.update_since(before).isfinite().all()


@pytest.mark.parametrize("stop_after", [20, -20])
def test_early_stop_of_one_worker_ends_all_workers_with_the_same_model(start_training, stop_after):
    training = start_training("a", "b")
    workers = training.start_workers("ab", {"stop_after": stop_after})
    training.finish_all(workers)
    first, second = (worker.model["counts"].tolist() for worker in workers)
    assert first == second
    assert sum(first) < EPOCHS * SAMPLES
    assert training.server.newest_progress.percent == 100
    assert training.server.newest_progress.metrics["failures"] == 0


def test_non_finite_change_is_rejected(start_training):
    training = start_training("a", "b")
    (other,) = training.start_workers("a")
    diverging = training.start_worker("b", {"step": float("nan")})
    assert diverging.wait_for_end() == 5
    assert "b is lost (its change is not finite" in training.server.log
    assert "b has failed 3 times and is excluded" in diverging.log
    training.finish_and_check([other])


def test_mismatched_worker_is_rejected_with_the_reason(start_training):
    training = start_training("a", "b")
    training.start_workers("a")
    for name, other, reason in (
        ("stranger", {}, "the schedule has no share for stranger"),
        ("b", {"samples": SAMPLES + 1}, f"samples: got {SAMPLES + 1}, expected {SAMPLES} as in a"),
        ("b", {"epochs": EPOCHS + 1}, f"b has {EPOCHS + 1} epochs, other workers {EPOCHS}"),
    ):
        worker = training.start_worker(name, **other)
        assert worker.wait_for_end() == 7
        assert reason in worker.log


INVALID_FIELDS = [
    {"worker": "stranger"},
    {"epochs": 0},
    {"epochs": "4"},
    {"epochs": 1 << 60},
    {"size": 10**12},
    {"size": -1},
    {"size": True},
    {"summed": 5},
    {"dtype": "load"},
    {"batch_size": 0.5},
    {"description": [3]},
    {"description": {"samples": {}}},
    {"description": {"model": [["weight"]]}},
    {"description": {"a\nb": 1}},
    {"description": dict.fromkeys(map(str, range(200)))},
]


@pytest.mark.parametrize("fields", INVALID_FIELDS, ids=str)
def test_worker_that_may_not_join_does_not_set_the_number_of_epochs(start_training, fields):
    training = start_training("a")
    peer = connect("127.0.0.1", training.port, b"")
    peer.send({"worker": "a", "epochs": 7, "size": 4, "summed": 4, "dtype": "float32"} | fields)
    with suppress(handshake.DisconnectedError):
        assert peer.receive()["kind"] == "rejected"
    peer.close()
    training.finish_and_check([training.start_worker("a")])


def test_worker_with_numbers_of_another_type_is_rejected():
    training = make_joined_training("a", batch_size=1)
    reason = training.rejection_reason("a", 1, 3, 3, torch.float64)
    assert reason == "the model of a has numbers of torch.float64, other workers torch.float32: run the same script"


def test_wrong_keys_and_malformed_messages_are_rejected(start_training, monkeypatch):
    monkeypatch.setenv("PACELINE_SERVER_KEY", "the right one")
    training = start_training("a")
    stranger = training.start_worker("a", PACELINE_SERVER_KEY="a wrong one")
    training.server.wait_until_logged("the peer does not have the key of this training")
    stranger.kill()
    for nonsense in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 100, b"\x00\x00\x00\x02{}", b"\x7f\xff\xff\xff"):
        with socket.create_connection(("127.0.0.1", training.port)) as connection:
            connection.sendall(nonsense)
    training.server.wait_until(lambda server: server.log.count("connection closed") >= 5)
    training.finish_and_check([training.start_worker("a")])


@pytest.mark.parametrize("sent", [b"", b" "], ids=["silent", "one byte at a time"])
def test_connections_that_send_no_message_are_closed_after_the_handshake_timeout(monkeypatch, sent):
    monkeypatch.setattr(handshake, "_HANDSHAKE_TIMEOUT_S", 0.5)
    server = handshake.Handshake(
        "127.0.0.1", 0, b"", lambda peer, message, connection_id: peer.send({"kind": "welcome"})
    )
    server.open()
    with ExitStack() as closing:
        silent = [  # more connections than the server accepts handshakes at a time
            closing.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=LIMIT_S))
            for _ in range(200)
        ]
        for connection in silent:
            with suppress(ConnectionError):  # above the limit
                connection.sendall(struct.pack("!i", 1000) if sent else b"")
        stop = threading.Event()
        closing.callback(stop.set)
        threading.Thread(target=send_repeatedly, args=(silent, sent, stop), daemon=True).start()
        answer = None
        while answer is None:
            try:
                peer = connect("127.0.0.1", server.port, b"")
                peer.send({"worker": "a"})
                answer = peer.receive()
            except handshake.DisconnectedError:  # retry at the limit, as workers do
                continue
        for connection in silent:
            with suppress(ConnectionError):  # a connection is reset if it has unread bytes
                while connection.recv(1000):
                    pass
    assert answer == {"kind": "welcome"}


def send_repeatedly(connections, sent, stop):
    """Send ``sent`` on each connection every 0.05 s."""
    while not stop.wait(0.05):
        for connection in connections:
            with suppress(OSError):
                connection.sendall(sent)


def test_server_ends_if_no_worker_connects_within_patience_s(start_training):
    training = start_training("a", options=("--patience-s", "0.5"))
    assert training.server.wait_for_end() == 4
    assert "no worker for 0.5 s: giving up" in training.server.log


def test_asynchronous_updates_reach_the_accuracy_of_one_worker():
    """Three workers train batches in turn. Each worker's state lacks the last two changes by the other workers."""
    random = torch.Generator().manual_seed(3)
    inputs = torch.randn(500, 8, generator=random)
    wanted = (inputs @ torch.randn(8, generator=random) > 0).float()

    def train_and_measure_accuracy(names):
        model = torch.nn.Linear(8, 1)
        vector = StateVector({"model": model})
        training = make_joined_training(names, batch_size=5, epochs=2, vector=vector)
        seen = dict.fromkeys(names, training.state.snapshot())
        while not training.ended:
            for connection_id, name in enumerate(names):
                lease = training.next_message(name, connection_id)
                if lease["kind"] == "order":
                    training.start_epoch(name, connection_id, torch.randperm(500, generator=random).tolist())
                if lease["kind"] != "lease":
                    continue
                vector.write(seen[name])
                model.zero_grad()
                scores = model(inputs[lease["indices"]]).squeeze(1)
                torch.nn.functional.binary_cross_entropy_with_logits(scores, wanted[lease["indices"]]).backward()
                with torch.no_grad():
                    for parameter in model.parameters():
                        parameter -= 0.2 * parameter.grad
                version, update = training.state.own_range()[0]["version"], vector.update_since(seen[name])
                assert training.apply_change(name, connection_id, lease["number"], version, update, {})
                seen[name] = training.state.snapshot()
        vector.write(training.state.snapshot())
        return float(((model(inputs).squeeze(1) > 0) == (wanted > 0)).float().mean())

    alone = train_and_measure_accuracy("a")
    assert alone > 0.95
    assert train_and_measure_accuracy("abc") >= alone - 0.01


def test_server_ends_the_job_when_accuracy_levels_off_even_after_a_restart(start_training):
    training = start_training("a", "b", epochs=200)
    (worker,) = training.start_workers("a", {"gain": 0.005}, hold=120)
    training.server.wait_until_done(6 * SAMPLES)
    training.server.process.terminate()  # SIGTERM saves the accuracy curve, unlike SIGKILL
    assert training.server.wait_for_end() == 143
    training.start_server()
    training.finish_all([worker])
    counts = worker.model["counts"].tolist()
    assert set(counts) == {counts[0]}  # all epochs have been trained completely
    assert 9 <= counts[0] <= 16  # after 10 epochs, the gain of an epoch is 0.005
    assert "training ends after" in training.server.log
    first, last = training.server.progress[0], training.server.newest_progress
    assert first.epochs < 200
    assert (last.epochs, last.percent) == (counts[0], 100)


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ("", r"plan: got '', expected \{\"workers\""),
        ("[]", r"plan: got '\[\]', expected \{\"workers\""),
        ("{}", r"plan: got '\{\}', expected \{\"workers\""),
        ({"workers": {}}, r"plan: got \{'workers': \{\}\}, expected \{\"workers\""),
        ({"workers": {"a": 3}}, "plan.workers.a: got 3, expected a mapping"),
        ({"workers": {"a": {"samples": 0}}}, "plan.workers.a.samples: got 0, expected a number greater than 0"),
        ({"workers": {"a": {"samples": -5}}}, "plan.workers.a.samples: got -5, expected a number"),
        ({"workers": {"a": {"samples": True}}}, "plan.workers.a.samples: got True, expected a number"),
        ({"workers": {"a": {"batch_size": 4}}}, "plan.workers.a.samples: got None, expected a number"),
        ({"workers": {"a": {"samples": 1, "batch_size": 0}}}, "plan.workers.a.batch_size: got 0, expected a whole"),
        (
            '{"workers": {"a": {"samples": 1, "batch_size": 1.5}}}',
            "plan.workers.a.batch_size: got 1.5, expected a whole",
        ),
        ({"workers": {"a": {"samples": 1, "batchsize": 4}}}, "plan.workers.a: got 'batchsize', expected only the keys"),
        ({"workers": {"a": {"samples": 1}}, "exclude": {}}, "plan: got 'exclude', expected only the keys"),
        ({"workers": {"a": {"samples": 1}}, "excluded": ["b"]}, r"plan.excluded: got \['b'\], expected a mapping"),
    ],
)
def test_invalid_plan_is_rejected_by_field(plan, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        read_plan(plan)
