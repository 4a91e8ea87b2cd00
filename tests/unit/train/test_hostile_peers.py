"""Peers that send nothing, too much or nonsense stop neither the parameter server nor its workers."""

import socket
import struct
import threading
import time
from contextlib import ExitStack, closing
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from paceline.train.parameter_server import _limits as limits
from paceline.train.parameter_server import handshake
from paceline.train.parameter_server import peer as peers
from paceline.train.parameter_server._training import SharedTraining
from paceline.train.parameter_server.peer import DisconnectedError, connect
from paceline.train.parameter_server.shards import SampleShare

from .machines import LIMIT_S, SAMPLES, make_joined_training

KEY = "a secret"
# A parameter server whose handshakes may take as long as a test.
PATIENT_SERVER = """
from paceline.train.parameter_server import __main__, handshake

handshake._HANDSHAKE_TIMEOUT_S = 10_000.0
handshake.end_process(__main__.main())
"""
HELLO = {"worker": "b", "epochs": 4, "size": SAMPLES + 3, "summed": SAMPLES + 2, "dtype": "float64"}


@pytest.fixture
def connections():
    """Return a function that opens connections, which stay open until the test ends."""
    with ExitStack() as stack:

        def open_connections(port, number=1, source="127.0.0.1"):
            return [
                stack.enter_context(socket.create_connection(("127.0.0.1", port), LIMIT_S, source_address=(source, 0)))
                for _ in range(number)
            ]

        yield open_connections


@pytest.fixture
def start_handshake(monkeypatch):
    """Return a function that starts a server that welcomes each peer; its handshakes may take as long as a test."""
    monkeypatch.setattr(handshake, "_HANDSHAKE_TIMEOUT_S", 10_000.0)

    def serve(peer, message, connection_id):
        peer.send({"kind": "welcome"})
        return True

    def start(key=b""):
        server = handshake.Handshake("127.0.0.1", 0, key, serve)
        server.open()
        return server

    return start


def greet(peer):
    with closing(peer):
        peer.send({"worker": "a"})
        return peer.receive()["kind"]


def is_open(connection):
    try:
        connection.setblocking(False)
        while connection.recv(1000):
            pass
    except BlockingIOError:
        return True
    return False


def wait_until_closed(connection):
    connection.settimeout(LIMIT_S)
    while connection.recv(1000):
        pass


def wait_until(condition):
    time_limit_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < time_limit_s
        time.sleep(0.001)


@pytest.mark.parametrize("key", ["", KEY], ids=["without key", "with key"])
def test_worker_trains_while_idle_connections_are_open(start_training, connections, monkeypatch, key):
    monkeypatch.setenv("PACELINE_SERVER_KEY", key)
    training = start_training("a", program=("-c", PATIENT_SERVER))
    idle = connections(training.port, 200)
    worker = training.start_worker("a", hold=20)
    worker.wait_until_held(20)
    assert any(map(is_open, idle))
    training.finish_and_check([worker])


def test_new_connection_displaces_the_oldest_of_the_host_with_the_most(start_handshake, connections, monkeypatch):
    monkeypatch.setattr(handshake, "_MAX_PENDING_PER_HOST", 3)
    monkeypatch.setattr(handshake, "_MAX_PENDING", 5)
    port = start_handshake().port
    first, *many = connections(port, 4)
    wait_until_closed(first)
    few = connections(port, 2, source="127.0.0.2")
    connections(port, source="127.0.0.3")
    wait_until_closed(many[0])
    assert greet(connect("127.0.0.1", port, b"")) == "welcome"
    wait_until_closed(many[1])
    assert all(map(is_open, few))


def test_peer_with_the_key_is_not_displaced(start_handshake, connections):
    server = start_handshake(KEY.encode())
    peer = connect("127.0.0.1", server.port, KEY.encode())
    wait_until(lambda: not server._pending)
    wait_until_closed(connections(server.port, handshake._MAX_PENDING + 1)[0])
    assert greet(peer) == "welcome"


def test_worker_disconnects_from_a_server_that_takes_no_data(start_handshake, monkeypatch):
    """A full buffer stands for a broken route: in both cases, data remains in the kernel of the sender."""
    monkeypatch.setattr(peers, "_UNACKNOWLEDGED_MS", 100)
    peer = connect("127.0.0.1", start_handshake().port, b"")
    with closing(peer):
        peer.send({"worker": "a"})
        assert peer.receive()["kind"] == "welcome"
        with pytest.raises(DisconnectedError, match="timed out"):
            peer.send({"kind": "state"}, torch.zeros(20_000_000))


def test_server_accepts_connections_after_a_thread_could_not_start(start_handshake, monkeypatch, connections):
    class Thread(threading.Thread):
        def start(self):
            if self._target.__self__ in failing:  # servers of other tests may still accept connections
                failing.clear()
                raise RuntimeError("can't start new thread")
            super().start()

    monkeypatch.setattr(handshake, "threading", SimpleNamespace(**vars(threading) | {"Thread": Thread}))
    failing = []
    server = start_handshake()
    failing.append(server)
    wait_until_closed(connections(server.port)[0])
    peer = connect("127.0.0.1", server.port, b"")
    peer.set_timeout(LIMIT_S)
    assert greet(peer) == "welcome"


def test_rejected_connections_do_not_fill_the_log(start_handshake, connections, capsys):
    server = start_handshake()
    for connection in connections(server.port, 50):
        connection.sendall(struct.pack("!i", 2) + b"[]")
        wait_until_closed(connection)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 20
    assert lines[-1].endswith("further lines of this kind are omitted for a minute")


@pytest.mark.parametrize("answer", [b"SSH-2.0-OpenSSH_9.6\r\n" * 20, struct.pack("!i", 5) + b"Hello"])
def test_other_service_at_the_address_is_a_lost_server(answer):
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            with listener.accept()[0] as connection:
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(DisconnectedError):
            connect("127.0.0.1", listener.getsockname()[1], b"key")
        thread.join()


def test_declared_state_takes_no_memory_before_it_arrives(start_training):
    training = start_training("a")
    statm = Path(f"/proc/{training.server.process.pid}/statm")

    def resident_bytes():
        return int(statm.read_text().split()[1]) * 4096

    before, size = resident_bytes(), 50_000_000
    with closing(connect("127.0.0.1", training.port, b"")) as peer:
        peer.send({**HELLO, "worker": "a", "size": size, "summed": size})
        assert peer.receive()["kind"] == "begin"
        assert resident_bytes() < before + 8 * size / 2
    training.finish_and_check([training.start_worker("a")])


def test_model_that_exceeds_the_memory_is_rejected(monkeypatch):
    monkeypatch.setattr(limits, "memory_bytes", lambda: 1 << 10)
    training = SharedTraining({"a": SampleShare(1)}, stuck_s=60.0)
    assert training.rejection_reason("a", 1, 128, 128, torch.float32) is None
    reason = training.rejection_reason("a", 1, 129, 129, torch.float32)
    assert reason == "the model of a has 129 numbers, the memory of the parameter server allows 128"


def test_memory_is_that_of_the_control_group(monkeypatch, tmp_path):
    unlimited, limited = tmp_path / "memory.max", tmp_path / "memory.limit_in_bytes"
    monkeypatch.setattr(limits, "_CGROUP_LIMITS", (unlimited, limited))
    assert limits.memory_bytes.__wrapped__() > 1 << 20
    unlimited.write_text("max\n")
    limited.write_text("4096\n")
    assert limits.memory_bytes.__wrapped__() == 4096


@pytest.mark.parametrize("reported", [{"loss": "low"}, {"loss": None}, [1], {"loss": 10**400}, dict.fromkeys("abc", 1)])
def test_change_with_invalid_metrics_does_not_count(monkeypatch, reported):
    monkeypatch.setattr(limits, "_MAX_METRICS", 2)
    training = make_joined_training("a", batch_size=1)
    training.next_message("a", 0)
    training.start_epoch("a", 0, [0])
    number, version = training.next_message("a", 0)["number"], training.state.own_range()[0]["version"]
    with pytest.raises(ValueError, match="reported: expected at most 2 metrics, each a number"):
        training.apply_change("a", 0, number, version, torch.ones(3), reported)
    assert training.progress("progress").done == 0


LINE = "ps-1\n@paceline {}"


@pytest.mark.parametrize("fields", [{"port": 70_000}, {"part": LINE}, {"leaves": LINE}], ids=["port", "name", "leaves"])
def test_holder_with_an_invalid_address_or_name_is_rejected(start_training, fields):
    training = start_training("a")
    (worker,) = training.start_workers("a")
    with closing(connect("127.0.0.1", training.port, b"")) as holder:
        holder.send(fields if "leaves" in fields else {"part": "ps-1", "port": 1} | fields)
        with pytest.raises(DisconnectedError):
            holder.receive(lambda message, length: torch.empty(length, dtype=torch.float64))
    training.finish_and_check([worker])


def test_unknown_holder_that_leaves_is_not_logged(start_training):
    training = start_training("a")
    with closing(connect("127.0.0.1", training.port, b"")) as holder:
        holder.send({"leaves": "ps-1"})
        assert holder.receive()["kind"] == "ok"
    assert "ps-1" not in training.server.log


INVALID_ANSWERS = {"list": b"[0, []]", "length": b"[7, {}]", "nested": b"[" * 100_000, "no JSON": b"nonsense"}


@pytest.mark.parametrize("answer", INVALID_ANSWERS.values(), ids=INVALID_ANSWERS)
def test_holder_with_invalid_answers_is_removed(start_training, answer):
    training = start_training("a")
    (worker,) = training.start_workers("a")
    with closing(connect("127.0.0.1", training.port, b"")) as holder:
        holder.send({"part": "ps-1", "port": 1})
        holder.receive(lambda message, length: torch.empty(length, dtype=torch.float64))
        holder._connection.send_bytes(answer)
        training.server.wait_until_logged("ps-1 cannot hold its shard of the state")
        training.finish_and_check([worker])


def test_peer_that_hangs_within_a_message_does_not_stop_other_workers(start_training):
    training = start_training("a", "b", options=("--stuck-s", "1"))
    (worker,) = training.start_workers("a")
    with closing(connect("127.0.0.1", training.port, b"")) as hanging:
        hanging.send(HELLO)
        state = torch.empty(HELLO["size"], dtype=torch.float64)
        assert hanging.receive(state)["kind"] == "welcome"
        hanging.send({"kind": "lease"})
        answer = hanging.receive()
        while answer["kind"] != "lease":  # the server may first request the order of the samples
            vector = torch.arange(SAMPLES) if answer["kind"] == "order" else None
            hanging.send({"kind": "order" if answer["kind"] == "order" else "lease"}, vector)
            answer = hanging.receive()
        hanging._socket.sendall(struct.pack("!i", 1000) + b"[62, {")
        worker.resume()
        training.server.wait_until_done(training.epochs * SAMPLES)
    assert "b has not returned a batch" in training.server.log
