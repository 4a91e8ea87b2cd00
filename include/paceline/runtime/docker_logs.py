"""Reads a container's output while it runs and across losses of the engine: no line is left out.

``DockerJob`` starts one ``LogFollower``, a background thread, for each run of its container.
"""

from __future__ import annotations

import calendar
import contextlib
import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from paceline.errors import JobLostError, PacelineError, RuntimeUnavailableError
from paceline.runtime.docker_errors import engine_call
from paceline.runtime.lines import LineAssembler

if TYPE_CHECKING:
    from docker import APIClient

log = logging.getLogger(__name__)

_HEADER = 8  # a frame is a stream number, three zeros, a big-endian length, then the payload
_OVERLAP_S = 2  # what is asked for again after a loss; stdout and stderr may be stored out of order by some ms
_QUIET_S = 60.0  # a connection that says nothing for so long may be dead without our knowing: make a new one
_CONNECT_S = 10.0
_QUEUE_BYTES = 64 * 1024**2  # beyond this the thread stops reading, and the rest waits in the engine's log file
_BACKOFF_S = (0.1, 0.2, 0.5, 1.0, 2.0)


class FrameParser:
    """Cuts the engine's multiplexed stream into ``(stream, payload)``, however the bytes arrive.

    >>> FrameParser().feed(bytes([1, 0, 0, 0, 0, 0, 0, 2]) + b"hi" + bytes([2, 0]))
    [(1, b'hi')]
    """

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """Take the next bytes; return the frames that they complete."""
        self._buffer += data
        frames = []
        start = 0
        while len(self._buffer) - start >= _HEADER:
            end = start + _HEADER + int.from_bytes(self._buffer[start + 4 : start + _HEADER], "big")
            if len(self._buffer) < end:
                break
            frames.append((self._buffer[start], bytes(self._buffer[start + _HEADER : end])))
            start = end
        del self._buffer[:start]
        return frames


class Place:
    """The read position in each stream. A new connection repeats the last seconds of the previous one.

    Engines also send a few entries twice when they rotate the log file. Those are passed on: progress lines are
    numbered, so their reader ignores repetitions.

    >>> place = Place()
    >>> place.is_new(1, "2030-01-01T12:00:05.000000000Z"), place.since()
    (True, '1893499203')
    >>> place.reconnect()
    >>> [place.is_new(1, f"2030-01-01T12:00:0{second}.000000000Z") for second in (4, 5, 6)]
    [False, False, True]
    """

    def __init__(self) -> None:
        self._last = ""  # timestamps are RFC 3339 with nine decimals, all UTC: they sort as text
        # By stream: the newest timestamp, and the entries that have it (pieces of one long line).
        self._newest: dict[int, tuple[str, int]] = {}
        self._read: dict[int, tuple[str, int]] = {}

    def reconnect(self) -> None:
        """Call before a new connection."""
        self._read = dict(self._newest)

    def is_new(self, stream: int, stamp: str) -> bool:
        """Whether the entry was not read from an earlier connection."""
        read, pieces = self._read.get(stream, ("", 0))
        if stamp < read:
            return False
        if stamp == read and pieces > 0:
            self._read[stream] = (read, pieces - 1)
            return False
        self._read.pop(stream, None)  # from here on all is new, also if the engine's clock is set back
        if stamp < self._last and _seconds(stamp) < _seconds(self._last) - _OVERLAP_S:
            self._newest.clear()  # it was set back
        newest, pieces = self._newest.get(stream, ("", 0))
        self._newest[stream] = (stamp, pieces + 1 if stamp == newest else 1)
        self._last = stamp
        return True

    def since(self) -> str | None:
        """Return the engine's ``since`` for a new connection; ``None`` if nothing was read yet."""
        return str(_seconds(self._last) - _OVERLAP_S) if self._last else None


class LogFollower:
    """Follows one container's output in a thread until the container has ended.

    Parameters
    ----------
    client:
        An ``APIClient`` that may be used from another thread.
    container:
        Id of the container.
    has_ended:
        Asks the engine whether the container has ended or is gone.
    tail:
        Begin so many entries before the end; ``None`` begins with the first.
    """

    def __init__(
        self, client: APIClient, container: str, has_ended: Callable[[], bool], tail: int | None = None
    ) -> None:
        self._client = client
        self._container = container
        self._has_ended = has_ended
        self._tail = tail
        self._place = Place()
        self._assemblers = {1: LineAssembler(), 2: LineAssembler()}
        self._lines: deque[str] = deque()
        self._size = 0
        self._room = threading.Condition()
        self._closed = threading.Event()
        self._response: object = None
        self.ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to follow, or go on after the container was started again."""
        self.ended.clear()
        self._thread = threading.Thread(target=self._run, name=f"paceline-log-{self._container[:12]}", daemon=True)
        self._thread.start()

    def take(self) -> list[str]:
        """Return the lines that have come in since the last call."""
        with self._room:
            lines = list(self._lines)
            self._lines.clear()
            self._size = 0
            self._room.notify_all()
        return lines

    def close(self) -> None:
        """End the thread; the container goes on."""
        self._closed.set()
        with self._room:
            self._room.notify_all()
        thread, response = self._thread, self._response
        if response is not None:
            _hang_up(response)
        if thread is not None and thread is not threading.current_thread():
            thread.join(0.5)  # a job that has not said a word yet cannot be hung up on: its thread ends with the job

    def _run(self) -> None:
        try:
            self._follow()
        except Exception as error:
            if not self._closed.is_set():
                log.error("The job's output cannot be read any more: %s", error, exc_info=error)
                self._wait_for_end()
        finally:
            self._put([line for assembler in self._assemblers.values() for line in assembler.flush()])
            self.ended.set()

    def _follow(self) -> None:
        failures = 0
        while not self._closed.is_set():
            try:
                self._read(follow=True)
                if self._has_ended():
                    # A stream can be cut just before the end: ask once more for what it may have left out.
                    self._read(follow=False)
                    return
                if failures:
                    log.info("The Docker engine is back; reading the job's output goes on.")
                failures = 0
            except RuntimeUnavailableError as error:
                if failures == 0 and not self._closed.is_set():
                    log.warning("The Docker engine is away; the job's output waits there. %s", error)
                failures += 1
            except JobLostError:
                return  # removed: status() will say so
            self._closed.wait(_BACKOFF_S[min(failures, len(_BACKOFF_S) - 1)])

    def _wait_for_end(self) -> None:
        """Without its output the job's end can still be told."""
        while not self._closed.wait(1.0):
            with contextlib.suppress(PacelineError):
                if self._has_ended():
                    return

    def _read(self, *, follow: bool) -> None:
        """Read one connection to its end; a connection cut short by silence or by ``close`` ends without an error."""
        import requests.exceptions
        import urllib3.exceptions

        self._place.reconnect()
        parser = FrameParser()
        try:
            for data in self._connect(follow):
                lines: list[str] = []
                for stream, payload in parser.feed(data):
                    stamp, _, content = payload.partition(b" ")
                    if self._place.is_new(stream, stamp.decode("ascii", "replace")):
                        lines += self._assemblers[2 if stream == 2 else 1].feed(content)
                self._put(lines)
                if self._closed.is_set():
                    return
        except (requests.exceptions.RequestException, urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            quiet = "timed out" in str(error).lower()
            if not quiet and not self._closed.is_set():
                raise RuntimeUnavailableError(f"reading the output was interrupted: {error}") from error

    def _connect(self, follow: bool) -> Iterator[bytes]:
        parameters: dict[str, str | int] = {"stdout": 1, "stderr": 1, "timestamps": 1, "follow": int(follow)}
        since = self._place.since()
        if since is not None:
            parameters["since"] = since
        elif self._tail is not None:
            parameters["tail"] = self._tail
        address = f"{self._client.base_url}/v{self._client.api_version}/containers/{self._container}/logs"
        with engine_call("read the job's output"):
            # Not client.logs(): it hides which stream a piece is from, and waits for ever on a dead connection.
            response = self._client.get(
                address, params=parameters, stream=True, timeout=(_CONNECT_S, _QUIET_S if follow else _CONNECT_S)
            )
            if response.status_code in (404, 409):  # 409: somebody is removing it at this moment
                response.close()
                raise JobLostError("the container is not there any more")
            if response.status_code != 200:
                said = response.text[:200]
                response.close()
                raise RuntimeUnavailableError(f"reading the output: HTTP {response.status_code} {said}")
        self._response = response
        try:
            yield from response.iter_content(chunk_size=None)
        finally:
            self._response = None
            response.close()

    def _put(self, lines: list[str]) -> None:
        if not lines:
            return
        with self._room:
            self._lines.extend(lines)
            self._size += sum(map(len, lines))
            while self._size > _QUEUE_BYTES and not self._closed.is_set():
                self._room.wait(1.0)


def _hang_up(response: object) -> None:
    """Wake a thread that waits on this response: closing alone does not interrupt a read under way."""
    # The connection itself has forgotten its socket by now; only the reader's end of it knows.
    sock: object = response
    for name in ("raw", "_fp", "fp", "raw", "_sock"):
        sock = getattr(sock, name, None)
    if isinstance(sock, socket.socket):
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)


def _seconds(stamp: str) -> int:
    return calendar.timegm(time.strptime(stamp[:19], "%Y-%m-%dT%H:%M:%S"))
