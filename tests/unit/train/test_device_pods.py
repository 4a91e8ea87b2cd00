"""Devices in other pods join and leave data-parallel training without a change of its result.

The processes (see ``device_pods.py``), their TCP connections and torch's collectives are real.
"""

import contextlib
import ctypes
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections import Counter

import pytest
import torch

from paceline.train.job import EXIT_DEVICE_LOST
from paceline.train.parallel import _wire
from paceline.train.parallel._pods import DevicePods, PodProcess
from paceline.train.parallel._wire import ProcessEnd, Wire
from paceline.train.parameter_server.peer import DisconnectedError, connect
from paceline.train.progress import parse_line

from .machines import HERE, INCLUDE, LIMIT_S

ROOT = HERE.parents[2]
KEY = b"the key of the job"


class Training:
    """A training in a folder, which can be run again."""

    def __init__(self, folder):
        self.folder = folder
        for name in ("seen", "output", "tmp", "pods"):
            (folder / name).mkdir()

    def run(self, events, ends_with=0, **plan):
        (self.folder / "plan.json").write_text(json.dumps({"events": events, **plan}))
        environment = {
            **os.environ,
            "PYTHONPATH": f"{INCLUDE}:{ROOT}",
            "PACELINE_OUTPUT": str(self.folder / "output"),
            "PACELINE_CHECKPOINT": str(self.folder / "checkpoint"),
            "PACELINE_DEVICE_PODS": "0",
            "PACELINE_DEVICE_PODS_KEY": KEY.decode(),
            "GLOO_SOCKET_IFNAME": "lo",
            "TMPDIR": str(self.folder / "tmp"),
        }
        command = [sys.executable, HERE / "device_pods.py", self.folder / "plan.json"]
        output, errors = self.folder / "output.txt", self.folder / "errors.txt"
        try:
            with output.open("w") as out, errors.open("w") as err:
                code = subprocess.run(command, env=environment, stdout=out, stderr=err, timeout=LIMIT_S, check=False)
        finally:
            for pod in (self.folder / "pods").iterdir():  # those of a job that has failed
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(int(pod.name), signal.SIGKILL)
                pod.unlink()
        self.errors, lines = errors.read_text(), output.read_text().splitlines()
        assert code.returncode == ends_with, self.errors
        self.progress = [parsed for line in lines if (parsed := parse_line(line))]
        self.text = [line for line in lines if not parse_line(line)]

    @property
    def resizes(self):
        return [(line.done, line.devices_in_force) for line in self.progress if line.event == "resized"]

    @property
    def weights(self):
        return torch.load(self.folder / "output" / "model.pt", weights_only=True)

    @property
    def seen(self):
        return [line.split(" ", 2) for file in sorted((self.folder / "seen").iterdir()) for line in file.open()]

    @property
    def trained_counts(self):
        counts = [Counter() for _ in range(4)]
        for epoch, share, samples in self.seen:
            counts[int(epoch)].update(json.loads(samples)[0] if float(share) > 0 else [])
        return counts


@pytest.fixture
def training(tmp_path):
    return Training(tmp_path)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """A training in one process; its split of the data depends on its first random states."""
    training = Training(tmp_path_factory.mktemp("alone"))
    training.run({})
    return training


def assert_same_result(training, other):
    for name, weights in other.weights.items():
        assert torch.allclose(training.weights[name], weights, rtol=1e-9, atol=1e-9)


def test_pods_join_and_leave_without_a_change_of_the_result(training, alone):
    training.run({"2": {"join": [1, 2]}, "9": {"leave": [1]}, "16": {"join": [3]}})
    assert training.resizes == [(3, 3), (10, 2), (17, 3)]
    assert_same_result(training, alone)
    assert training.trained_counts == alone.trained_counts == [Counter(range(50))] * 4
    assert len({samples.rpartition("[")[2] for _, _, samples in training.seen}) == 1, "all have the first random states"
    assert training.text == ["ended on 28 [0, 0, 0]"]


def test_pod_lost_between_two_batches_is_left_out(training, alone):
    training.run({"2": {"join": [1, 2]}, "9": {"lose": [1]}})
    assert training.resizes == [(3, 3), (10, 2)]
    assert_same_result(training, alone)
    # The lost process may not have written the samples of its last batch.
    assert [set(counts.values()) for counts in training.trained_counts] == [{1}] * 4
    assert "the process on device 1 was lost with its pod: training continues without it" in training.errors


def test_pod_lost_in_a_batch_ends_the_job_which_resumes_from_its_checkpoint(training, alone):
    training.run({"2": {"join": [1, 2]}, "9": {"lose in batch": [2]}}, ends_with=EXIT_DEVICE_LOST, every_s=0)
    assert "data_parallel: the process on device 2 was lost with its pod during a batch" in training.errors
    training.run({})
    assert training.progress[0].done == 9
    assert_same_result(training, alone)


def test_script_that_fails_in_a_pod_ends_the_job_with_its_error(training):
    training.run({"2": {"join": [1]}, "9": {"fail": [1]}}, ends_with=1)
    assert "ArithmeticError: the cause" in training.errors
    assert "data_parallel: the process on device 1 left the loop at line" in training.errors.splitlines()[-1]


def test_peer_without_the_key_is_refused():
    pods = DevicePods(0, KEY)
    with pytest.raises(DisconnectedError):
        connect("127.0.0.1", pods.port, b"another key").receive()
    plain = socket.create_connection(("127.0.0.1", pods.port))
    plain.sendall(b'{"device": 1}')
    plain.settimeout(LIMIT_S)
    while plain.recv(1024):
        pass
    assert not pods.has_waiting


def process_and_peer():
    """Return a process as the lead sees it, and the socket of the other side."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        there = socket.create_connection(server.getsockname())
        return PodProcess(1, server.accept()[0]), there


@pytest.mark.parametrize("size", [0, 1, 5, 9, 20])
def test_message_that_ends_with_its_pod_means_that_the_pod_is_lost(size):
    process, there = process_and_peer()
    message = b"c" + struct.pack(">Q", 100) + bytes(100)
    assert not process.has_ended
    there.sendall(message[:size])
    assert not process.is_lost()
    there.close()
    assert process.is_lost(LIMIT_S)
    assert process.describe_end() == "the process on device 1 was lost with its pod"


def test_exit_code_and_cause_are_known_although_the_connection_has_ended():
    process, there = process_and_peer()
    Wire(there).end(-9)
    there.close()
    assert not process.is_lost(LIMIT_S)
    assert process.describe_end() == "the process on device 1 was killed (SIGKILL; out of memory?)"
    assert process.failed
    other, there = process_and_peer()
    Wire(there).send({"failed": "left the loop"})
    Wire(there).end(1)
    there.close()
    assert (other.is_lost(LIMIT_S), other.describe_end()) == (False, "the process on device 1 left the loop")


def test_message_of_a_process_that_goes_on_is_still_to_be_received():
    process, there = process_and_peer()
    Wire(there).send({"loop": 1})
    assert not process.is_lost()
    assert process.wire.receive() == {"loop": 1}
    there.close()


def test_pod_that_vanishes_silently_is_noticed(monkeypatch):
    monkeypatch.setattr(_wire, "_SILENCE", {"TCP_KEEPIDLE": 1, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 1})
    process, there = process_and_peer()
    assert not process.has_ended
    refuse_all = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))  # a filter: drop each packet
    program = struct.pack("HL", 1, ctypes.addressof(refuse_all))
    there.setsockopt(socket.SOL_SOCKET, 26, program)  # SO_ATTACH_FILTER
    assert process.wire.has_hung_up(LIMIT_S)
    assert process.is_lost(LIMIT_S)


def test_silence_of_a_pod_is_limited_to_about_20_s():
    process, there = process_and_peer()
    connection = process.wire._connection
    values = {name: connection.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in _wire._SILENCE}
    assert values["TCP_KEEPIDLE"] + values["TCP_KEEPINTVL"] * values["TCP_KEEPCNT"] == 20
    assert values["TCP_USER_TIMEOUT"] == 20_000
    assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    there.close()


def test_wire_passes_on_exit_codes():
    here, there = map(Wire, socket.socketpair())
    for code in (0, 3, -15):
        there.end(code)
        assert here.receive() == ProcessEnd(code)
