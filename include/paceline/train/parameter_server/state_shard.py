"""A process that holds a shard of the trained state: ``python -m paceline.train.parameter_server.state_shard``.

The process connects to the parameter server like a worker. Workers send the process their updates to its shard. The
process applies an update when the server confirms the batch. On SIGTERM, it returns the shard to the server and exits.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import threading
import time
from collections.abc import Sequence
from types import FrameType
from typing import Any

import torch

from paceline.train._values import bad_value, log
from paceline.train.job import ENV_SERVER, ENV_SERVER_KEY, ENV_WORKER, EXIT_NO_SERVER

from ._limits import MAX_PROCESSES, count, max_state_size, number_type, printable_name
from ._vector import apply_update
from .handshake import Handshake, end_process
from .peer import DisconnectedError, Peer, connect, parse_address

_PATIENCE_S, _RETRY_S = 120.0, 0.5
_LEAVE_RETRY_S = 0.5


class HeldShard:
    """The shard, and the workers' updates that are not confirmed yet.

    A worker has one batch in flight, so a new update replaces its previous update.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._version = 0
        self._vector: torch.Tensor | None = None
        self._total_size = 0  # length of the whole vector, the longest update
        self._summed = 0  # length of the part of the shard whose changes add up
        self._pending: dict[str, tuple[int, torch.Tensor]] = {}

    def replace(self, version: int, vector: torch.Tensor | None, total_size: int = 0, summed: int = 0) -> None:
        """Replace the shard with ``vector``, a range of a vector of ``total_size`` numbers.

        Changes to the first ``summed`` numbers of the range add up.
        """
        with self._lock:
            self._version, self._vector, self._total_size, self._summed = version, vector, total_size, summed
            self._pending.clear()

    def allocate(self, length: int) -> torch.Tensor:
        """Return memory for an update, which may belong to a previous shard."""
        with self._lock:
            if self._vector is None or length > self._total_size:
                raise ValueError(f"change: got {length} numbers, expected at most {self._total_size}")
            return torch.empty(length, dtype=self._vector.dtype)

    def store(self, worker: str, version: int, number: int, update: torch.Tensor) -> bool:
        """Store an update until the server confirms it; return false if it does not match the current shard."""
        if not torch.isfinite(update).all():
            raise ValueError("change: got values that are not finite, expected finite numbers")
        with self._lock:
            fits = version == self._version and self._vector is not None and len(update) == len(self._vector)
            if fits:
                count("workers", len(self._pending.keys() | {worker}), MAX_PROCESSES)
            if fits:
                self._pending[worker] = (number, update)
            return fits

    def commit(self, worker: str, number: int, staleness: int) -> bool:
        """Apply a worker's update of a batch to the shard; return whether the update was stored."""
        with self._lock:
            stored_number, update = self._pending.pop(worker, (None, None))
            if stored_number != number or update is None or self._vector is None:
                return False
            apply_update(self._vector, update, self._summed, staleness)
            return True

    def read(self, version: int | None = None) -> torch.Tensor | None:
        """Return a copy of the shard; ``None`` if there is no shard or its version is not ``version``."""
        with self._lock:
            if self._vector is None or version not in (None, self._version):
                return None
            return self._vector.clone()


class ShardServer:
    """Holds a shard: serves workers and executes the commands of the parameter server.

    Parameters
    ----------
    name:
        Unique name of the process.
    server:
        ``host:port`` of the parameter server.
    host:
        Address to listen on for workers.
    key:
        The secret that both sides must have; empty for none.
    patience_s:
        Seconds to wait for a parameter server that does not respond.
    """

    def __init__(self, name: str, server: str, host: str, key: bytes = b"", patience_s: float = _PATIENCE_S) -> None:
        self._name, self._server, self._key, self._patience_s = name, parse_address(server), key, patience_s
        self._shard = HeldShard()
        self._leaving, self._ended = threading.Event(), threading.Event()
        self._handshake = Handshake(host, 0, key, self._serve)
        self.port = self._handshake.port
        self._handshake.open()

    def run(self) -> int:
        """Hold a shard until training ends or the process leaves; return the exit code."""
        try:
            return self._follow_server()
        finally:
            self._ended.set()

    def _follow_server(self) -> int:
        last_seen_s = time.monotonic()
        while time.monotonic() < last_seen_s + self._patience_s and not self._leaving.is_set():
            try:
                peer = connect(*self._server, self._key)
            except DisconnectedError:
                time.sleep(_RETRY_S)
                continue
            try:
                peer.send({"part": self._name, "port": self.port})
                while self._execute_command(peer):
                    pass
                return 0
            except DisconnectedError as error:
                log(f"lost the parameter server ({error}): reconnecting")
                last_seen_s = time.monotonic()
                self._shard.replace(0, None)
                time.sleep(_RETRY_S)
            finally:
                peer.close()
        if self._leaving.is_set():
            return 0
        log(f"no parameter server at {self._server[0]}:{self._server[1]} for {self._patience_s:.0f} s")
        return EXIT_NO_SERVER

    def leave(self) -> None:
        """Request that the parameter server take the shard back; repeat the request until ``run`` ends."""
        self._leaving.set()
        while not self._ended.is_set():
            with contextlib.suppress(DisconnectedError):  # the server may be restarting
                peer = connect(*self._server, self._key)
                try:
                    peer.send({"leaves": self._name})
                    peer.receive()
                finally:
                    peer.close()
            self._ended.wait(_LEAVE_RETRY_S)

    def _execute_command(self, peer: Peer) -> bool:
        """Execute one command from the server; return whether more commands may follow."""
        received: list[torch.Tensor] = []

        def allocate(message: dict[str, Any], length: int) -> torch.Tensor:
            dtype = number_type(message["dtype"])
            received.append(torch.empty(count("state", length, max_state_size(dtype)), dtype=getattr(torch, dtype)))
            return received[0]

        message = peer.receive(allocate)
        kind, answer = message["kind"], None
        if kind == "hold":
            vector = received[0] if received else torch.empty(0)
            self._shard.replace(message["version"], vector, message["whole"], message["summed"])
        elif kind == "commit" and not self._shard.commit(message["worker"], message["number"], message["staleness"]):
            kind = "missing"
        elif kind == "read":
            answer = self._shard.read()
        peer.send({"kind": "missing" if kind == "missing" else "done"}, answer)
        return bool(kind != "end")

    def _serve(self, peer: Peer, message: dict[str, Any], connection_id: int) -> bool:
        """Answer a worker's requests until it disconnects."""
        worker = printable_name("worker", message["worker"])
        with contextlib.suppress(DisconnectedError):  # the worker has ended or uses another layout
            while True:
                self._answer_request(peer, worker)
        return False

    def _answer_request(self, peer: Peer, worker: str) -> None:
        sent: list[torch.Tensor] = []

        def allocate(message: dict[str, Any], length: int) -> torch.Tensor:
            sent.append(self._shard.allocate(length))
            return sent[0]

        message = peer.receive(allocate)
        if message["kind"] == "push":
            update = sent[0] if sent else torch.empty(0)
            fits = self._shard.store(worker, message["version"], message["number"], update)
            peer.send({"kind": "kept" if fits else "moved"})
        elif message["kind"] == "pull":
            vector = self._shard.read(message["version"])
            peer.send({"kind": "moved" if vector is None else "state"}, vector)
        else:
            raise bad_value("kind", message["kind"], "push or pull")


def main(arguments: Sequence[str] | None = None) -> int:
    """Hold a shard of the trained state until training ends; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m paceline.train.parameter_server.state_shard", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on for workers (127.0.0.1)")
    options = parser.parse_args(arguments)
    key = os.environ.get(ENV_SERVER_KEY, "").encode()
    server = ShardServer(os.environ.get(ENV_WORKER, ""), os.environ.get(ENV_SERVER, ""), options.host, key)

    def handle_sigterm(number: int, frame: FrameType | None) -> None:
        threading.Thread(target=server.leave, daemon=True).start()

    signal.signal(signal.SIGTERM, handle_sigterm)
    return server.run()


if __name__ == "__main__":
    end_process(main())
