"""A Docker engine whose clock is wrong: forwards a real engine's socket and shifts the timestamps in its answers.

Called by ``faults``. RFC 3339 timestamps keep their length when whole seconds are added, so log frames stay intact.
"""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

_STAMP = re.compile(rb"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d")
_SINCE = re.compile(rb"(?<=[?&]since=)\d{10}\b")
_LENGTH = len("2030-01-01T00:00:00")
_CHUNK = 2**16


class WrongClock:
    """Listens at a socket file for clients of the engine at ``real``.

    Parameters
    ----------
    real, socket_file:
        Socket files of the engine, and of the engine with the wrong clock.
    off_s:
        Whole seconds by which its clock is ahead.
    """

    def __init__(self, real: Path, socket_file: Path, off_s: int) -> None:
        self._real = str(real)
        self._before_s = self._after_s = off_s
        self._jumped_s = 0.0  # timestamps of earlier moments stay as they are
        self._open: set[socket.socket] = set()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(socket_file))
        self._listener.listen(64)
        self.address = f"unix://{socket_file}"
        threading.Thread(target=self._accept, daemon=True).start()

    def jump(self, seconds: int) -> None:
        """Set the clock forward, or back; connections are cut, so logs are asked for again."""
        self._before_s, self._after_s, self._jumped_s = self._after_s, self._after_s + seconds, time.time()
        self._cut()

    def close(self) -> None:
        self._listener.close()
        self._cut()

    def _cut(self) -> None:
        for one in list(self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                engine = socket.socket(socket.AF_UNIX)
                engine.connect(self._real)
                self._open |= {client, engine}
                threading.Thread(target=self._questions, args=(client, engine), daemon=True).start()
                threading.Thread(target=self._answers, args=(engine, client), daemon=True).start()

    def _questions(self, client: socket.socket, engine: socket.socket) -> None:
        with self._ends(client, engine):
            while data := client.recv(_CHUNK):
                engine.sendall(_SINCE.sub(lambda found: b"%d" % self._true_s(int(found[0])), data))

    def _answers(self, engine: socket.socket, client: socket.socket) -> None:
        with self._ends(engine, client):
            kept = b""
            while data := engine.recv(_CHUNK):
                data = kept + data
                kept = b"" if _STAMP.fullmatch(data[-_LENGTH:]) else _begun(data)
                client.sendall(_STAMP.sub(self._shifted, data[: len(data) - len(kept)]))
            client.sendall(kept)

    @contextlib.contextmanager
    def _ends(self, source: socket.socket, target: socket.socket) -> Iterator[None]:
        """Pass on that the source has ended; the last of a connection's two directions closes its sockets."""
        with contextlib.suppress(OSError):
            yield
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)
        self._open.discard(source)
        if target not in self._open:
            source.close()
            target.close()

    def _shifted(self, found: re.Match[bytes]) -> bytes:
        moment = datetime.fromisoformat(found[0].decode()).replace(tzinfo=timezone.utc)
        off_s = self._after_s if moment.timestamp() >= self._jumped_s else self._before_s
        return (moment + timedelta(seconds=off_s)).strftime("%Y-%m-%dT%H:%M:%S").encode()

    def _true_s(self, since_s: int) -> float:
        """Return the true time of a moment that the wrong clock has shown."""
        set_back = self._after_s < self._before_s  # two true times have this one: the earlier gives more, not less
        before = set_back or since_s < self._jumped_s + self._after_s
        return since_s - (self._before_s if before else self._after_s)


def _begun(data: bytes) -> bytes:
    """Return what may be the beginning of a timestamp at the end of ``data``."""
    for length in range(min(_LENGTH - 1, len(data)), 0, -1):
        tail = data[-length:]
        if _STAMP.fullmatch(tail + b"2030-01-01T00:00:00"[length:]):
            return tail
    return b""
