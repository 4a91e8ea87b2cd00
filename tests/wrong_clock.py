"""A proxy of a Docker engine that shifts the times in the responses, as if the engine's machine had a wrong clock.

The times are the engine's RFC 3339 timestamps and the wall clock in the progress lines of jobs. The offset is a whole
number of seconds, so the texts keep their length and log frames remain intact.
"""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

# Do not match the run ids in labels, which end with a time zone instead of the Z.
_TIME = re.compile(rb'(20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d{1,9})?(?=Z)|("wall_s":)(\d{10})(\.\d+)?')
_WHOLE = re.compile(rb'20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?Z|"wall_s":\d{10}')
_EXAMPLES = (b"2030-01-01T00:00:00.000000000Z", b'"wall_s":1000000000')
_FORMAT = "%Y-%m-%dT%H:%M:%S"
_SINCE = re.compile(rb"(?<=[?&]since=)\d{10}\b")
_CHUNK = 2**16


class WrongClock:
    """A proxy of the engine at ``real`` that seems to have a wrong clock. Clients connect to ``socket_file``.

    Parameters
    ----------
    real, socket_file:
        Socket files of the engine and of the proxy.
    offset_s:
        Initial offset of the wrong clock in whole seconds.
    """

    def __init__(self, real: Path, socket_file: Path, offset_s: int) -> None:
        self._real = str(real)
        self._before_s = self._after_s = offset_s
        self._jumped_s = 0.0  # times before the jump keep the earlier offset
        self._open: set[socket.socket] = set()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(socket_file))
        self._listener.listen(64)
        self.address = f"unix://{socket_file}"
        threading.Thread(target=self._accept_clients, daemon=True).start()

    def jump(self, seconds: int) -> None:
        """Set the clock forward or back, and close all connections, so that clients request logs again."""
        self._before_s, self._after_s, self._jumped_s = self._after_s, self._after_s + seconds, time.time()
        self._close_connections()

    def close(self) -> None:
        self._listener.close()
        self._close_connections()

    def _close_connections(self) -> None:
        for one in list(self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _accept_clients(self) -> None:
        with contextlib.suppress(OSError):  # ``close`` has closed the listener
            while True:
                client, _ = self._listener.accept()
                engine = socket.socket(socket.AF_UNIX)
                engine.connect(self._real)
                self._open |= {client, engine}
                threading.Thread(target=self._forward_requests, args=(client, engine), daemon=True).start()
                threading.Thread(target=self._forward_responses, args=(engine, client), daemon=True).start()

    def _forward_requests(self, client: socket.socket, engine: socket.socket) -> None:
        with self._closing_at_end(client, engine):
            while data := client.recv(_CHUNK):
                engine.sendall(_SINCE.sub(lambda match: b"%d" % self._true_s(int(match[0])), data))

    def _forward_responses(self, engine: socket.socket, client: socket.socket) -> None:
        with self._closing_at_end(engine, client):
            partial = b""
            while data := engine.recv(_CHUNK):
                data = partial + data
                partial = _partial_time(data)
                client.sendall(_TIME.sub(self._shift_time, data[: len(data) - len(partial)]))
            client.sendall(partial)

    @contextlib.contextmanager
    def _closing_at_end(self, source: socket.socket, target: socket.socket) -> Iterator[None]:
        """Forward the source's end of stream. Close both sockets as soon as both streams have ended."""
        with contextlib.suppress(OSError):
            yield
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)
        self._open.discard(source)
        if target not in self._open:
            source.close()
            target.close()

    def _shift_time(self, match: re.Match[bytes]) -> bytes:
        stamp, fraction, key, seconds, decimals = (part or b"" for part in match.groups())
        if key:
            true_s = int(seconds)
            return key + b"%d" % (true_s + self._offset_s(true_s, decimals)) + decimals
        true_s = int(datetime.strptime(stamp.decode(), _FORMAT).replace(tzinfo=timezone.utc).timestamp())
        wrong = datetime.fromtimestamp(true_s + self._offset_s(true_s, fraction), tz=timezone.utc)
        return wrong.strftime(_FORMAT).encode() + fraction

    def _offset_s(self, true_s: int, fraction: bytes) -> int:
        return self._after_s if true_s + float(fraction or 0) >= self._jumped_s else self._before_s

    def _true_s(self, since_s: int) -> float:
        """Return the true time that corresponds to a time of the wrong clock."""
        # After a jump back, two true times are possible. Return the earlier time, because it requests more lines.
        set_back = self._after_s < self._before_s
        before = set_back or since_s < self._jumped_s + self._after_s
        return since_s - (self._before_s if before else self._after_s)


def _partial_time(data: bytes) -> bytes:
    """Return the last bytes of ``data`` that may be the start of a time, or b"" if there are none."""
    for length in range(max(map(len, _EXAMPLES)) - 1, 0, -1):
        end = data[-length:]
        if any(_WHOLE.fullmatch(end + example[len(end) :]) for example in _EXAMPLES if len(end) < len(example)):
            return end
    return b""
