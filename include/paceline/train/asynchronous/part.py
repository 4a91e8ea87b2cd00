"""A process that holds a part of a training's state: ``python -m paceline.train.asynchronous.part``.

It finds the parameter server as a worker does. Workers send it their part of each change, and it adds that up when the
server says that the batch counts. Asked to end, it first gives its part back.
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

from paceline.train._values import bad_value, say
from paceline.train.job import ENV_SERVER, ENV_SERVER_KEY, ENV_WORKER, EXIT_NO_SERVER

from .handshake import Handshake, end_process
from .peer import GoneError, Peer, address, reach

_PATIENCE_S, _AGAIN_S = 120.0, 0.5
_MOST_WORKERS = 256
_LEAVE_AGAIN_S = 0.5


class HeldShard:
    """The part, and what workers have sent for it that does not count yet.

    A worker has one batch on its way at a time: what it sends replaces what it sent before.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._version = 0
        self._row: torch.Tensor | None = None
        self._whole = 0  # of the whole row: no worker has more to send
        self._sent: dict[str, tuple[int, torch.Tensor]] = {}

    def hold(self, version: int, row: torch.Tensor | None, whole: int = 0) -> None:
        """Hold another part from now on, of a row that is ``whole`` numbers long."""
        with self._lock:
            self._version, self._row, self._whole = version, row, whole
            self._sent.clear()

    def room(self, length: int) -> torch.Tensor:
        """Where to put what a worker sends, which may be for a part that was held before."""
        with self._lock:
            if self._row is None or length > self._whole:
                raise ValueError(f"change: got {length} numbers, expected {self._whole} at most")
            return torch.empty(length, dtype=self._row.dtype)

    def take(self, worker: str, version: int, number: int, change: torch.Tensor) -> bool:
        """Keep a change until it counts; returns whether it is for the part that is held now."""
        if not torch.isfinite(change).all():
            raise ValueError("what a worker has learned is not finite")
        with self._lock:
            fits = version == self._version and self._row is not None and len(change) == len(self._row)
            if fits and worker not in self._sent and len(self._sent) >= _MOST_WORKERS:
                raise ValueError(f"more than {_MOST_WORKERS} workers")
            if fits:
                self._sent[worker] = (number, change)
            return fits

    def commit(self, worker: str, number: int) -> bool:
        """Add what a worker has sent of a batch; returns whether it was here."""
        with self._lock:
            found, change = self._sent.pop(worker, (None, None))
            if found != number or change is None or self._row is None:
                return False
            self._row += change
            return True

    def read(self, version: int | None = None) -> torch.Tensor | None:
        """The part as it is now; ``None`` if it is of another version."""
        with self._lock:
            if self._row is None or version not in (None, self._version):
                return None
            return self._row.clone()


class PartServer:
    """Lets workers in, and does what the parameter server asks.

    Parameters
    ----------
    name:
        Its own, unlike any other's.
    server:
        ``host:port`` of the parameter server.
    host:
        Where to listen for workers.
    key:
        The secret that both sides have to prove; empty for none.
    patience_s:
        How long to look for a parameter server that does not answer.
    """

    def __init__(self, name: str, server: str, host: str, key: bytes = b"", patience_s: float = _PATIENCE_S) -> None:
        self._name, self._server, self._key, self._patience_s = name, address(server), key, patience_s
        self._part = HeldShard()
        self._leaving, self._ended = threading.Event(), threading.Event()
        self._handshake = Handshake(host, 0, key, self._serve)
        self.port = self._handshake.port
        self._handshake.open()

    def run(self) -> int:
        """Hold what there is to hold until the training ends, or it has left; returns the exit code."""
        try:
            return self._run()
        finally:
            self._ended.set()

    def _run(self) -> int:
        seen_s = time.monotonic()
        while time.monotonic() < seen_s + self._patience_s and not self._leaving.is_set():
            try:
                peer = reach(*self._server, self._key)
            except GoneError:
                time.sleep(_AGAIN_S)
                continue
            try:
                peer.send({"part": self._name, "port": self.port})
                while self._obey(peer):
                    pass
                return 0
            except GoneError as error:
                say(f"the parameter server is lost ({error}): looking for it")
                seen_s = time.monotonic()
                self._part.hold(0, None)
                time.sleep(_AGAIN_S)
            finally:
                peer.close()
        if self._leaving.is_set():
            return 0
        say(f"no parameter server at {self._server[0]}:{self._server[1]} for {self._patience_s:.0f} s")
        return EXIT_NO_SERVER

    def leave(self) -> None:
        """Ask the parameter server to take the part back, until ``run`` has ended for that."""
        self._leaving.set()
        while not self._ended.is_set():
            with contextlib.suppress(GoneError):  # it is started again, maybe; who holds nothing may just go
                peer = reach(*self._server, self._key)
                try:
                    peer.send({"leaves": self._name})
                    peer.receive()
                finally:
                    peer.close()
            self._ended.wait(_LEAVE_AGAIN_S)

    def _obey(self, peer: Peer) -> bool:
        """Do one thing that the server asks for; returns whether there is more to come."""
        given: list[torch.Tensor] = []

        def place(words: dict[str, Any], length: int) -> torch.Tensor:
            given.append(torch.empty(length, dtype=getattr(torch, words["dtype"])))
            return given[0]

        words = peer.receive(place)
        kind, row = words["kind"], None
        if kind == "hold":
            self._part.hold(words["version"], given[0] if given else torch.empty(0), words["whole"])
        elif kind == "commit" and not self._part.commit(words["worker"], words["number"]):
            kind = "missing"
        elif kind == "give":
            row = self._part.read()
        peer.send({"kind": "missing" if kind == "missing" else "done"}, row)
        return bool(kind != "end")

    def _serve(self, peer: Peer, words: dict[str, Any], guest: int) -> bool:
        """Everything that is said to one worker."""
        worker = str(words["worker"])
        with contextlib.suppress(GoneError):  # it looks elsewhere, or has ended: what counts, the server knows
            while True:
                self._answer(peer, worker)
        return False

    def _answer(self, peer: Peer, worker: str) -> None:
        sent: list[torch.Tensor] = []

        def place(words: dict[str, Any], length: int) -> torch.Tensor:
            sent.append(self._part.room(length))
            return sent[0]

        words = peer.receive(place)
        if words["kind"] == "push":
            change = sent[0] if sent else torch.empty(0)
            fits = self._part.take(worker, words["version"], words["number"], change)
            peer.send({"kind": "kept" if fits else "moved"})
        elif words["kind"] == "pull":
            row = self._part.read(words["version"])
            peer.send({"kind": "moved" if row is None else "state"}, row)
        else:
            raise bad_value("kind", words["kind"], "push or pull")


def main(arguments: Sequence[str] | None = None) -> int:
    """Hold a part of a training's state until the training is done."""
    parser = argparse.ArgumentParser(prog="python -m paceline.train.asynchronous.part", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1", help="where to listen for workers (127.0.0.1)")
    chosen = parser.parse_args(arguments)
    key = os.environ.get(ENV_SERVER_KEY, "").encode()
    part = PartServer(os.environ.get(ENV_WORKER, ""), os.environ.get(ENV_SERVER, ""), chosen.host, key)

    def leave(number: int, frame: FrameType | None) -> None:
        threading.Thread(target=part.leave, daemon=True).start()

    signal.signal(signal.SIGTERM, leave)
    return part.run()


if __name__ == "__main__":
    end_process(main())
