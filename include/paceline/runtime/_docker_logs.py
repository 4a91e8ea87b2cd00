"""Reader for a running container's output. It loses no lines during an engine outage.

``DockerJob`` has one ``LogFollower``, which starts a background thread for each run of the container.
"""

from __future__ import annotations

import calendar
import contextlib
import logging
import re
import socket
import threading
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING

from paceline.errors import JobLostError, PacelineError, RuntimeUnavailableError
from paceline.runtime._line_queue import LineQueue
from paceline.runtime._lines import LineAssembler
from paceline.runtime.docker_errors import engine_call

if TYPE_CHECKING:
    from docker import APIClient

log = logging.getLogger(__name__)

_HEADER_BYTES = 8  # the header of a frame: stream number, three zero bytes, big-endian length of the payload
_OVERLAP_S = 2  # a new connection repeats these seconds: stdout and stderr may be some ms out of order
_READ_S = 60.0  # reconnect after this time without output, because the connection may be dead
_CONNECT_S = 10.0  # connection timeout
_BACKOFF_S = (0.1, 0.2, 0.5, 1.0, 2.0)


class FrameParser:
    """Splits the engine's multiplexed stream into ``(stream, payload)`` frames. Chunks may have any size.

    >>> FrameParser().feed(bytes([1, 0, 0, 0, 0, 0, 0, 2]) + b"hi" + bytes([2, 0]))
    [(1, b'hi')]
    """

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """Process the next bytes and return all frames that are now complete."""
        self._buffer += data
        frames = []
        start = 0
        while len(self._buffer) - start >= _HEADER_BYTES:
            end = start + _HEADER_BYTES + int.from_bytes(self._buffer[start + 4 : start + _HEADER_BYTES], "big")
            if len(self._buffer) < end:
                break
            frames.append((self._buffer[start], bytes(self._buffer[start + _HEADER_BYTES : end])))
            start = end
        del self._buffer[:start]
        return frames


class ReadPosition:
    """The read position in each stream, to detect the entries that a new connection repeats.

    Engines also repeat a few entries when they rotate the log file. This class does not detect
    those, because the reader of the numbered progress lines ignores repeated lines.

    >>> position = ReadPosition()
    >>> position.is_new(1, "2030-01-01T12:00:05.000000000Z"), position.since()
    (True, '1893499203')
    >>> position.reconnect()
    >>> [position.is_new(1, f"2030-01-01T12:00:0{second}.000000000Z") for second in (4, 5, 6)]
    [False, False, True]
    """

    def __init__(self) -> None:
        self._last = ""  # RFC 3339 timestamp in UTC with nine decimals; these timestamps sort as text
        # Per stream: the newest timestamp and the number of entries with this timestamp (pieces of one long line).
        self._newest: dict[int, tuple[str, int]] = {}
        self._before: dict[int, tuple[str, int]] = {}  # _newest at the last reconnect

    def reconnect(self) -> None:
        """Prepare for a new connection, which repeats the end of the previous one."""
        self._before = dict(self._newest)

    def is_new(self, stream: int, stamp: str) -> bool:
        """Return whether no earlier connection delivered this entry."""
        read, pieces = self._before.get(stream, ("", 0))
        if stamp < read:
            return False
        if stamp == read and pieces > 0:
            self._before[stream] = (read, pieces - 1)
            return False
        self._before.pop(stream, None)  # all later entries are new, even if the engine's clock is set back
        if stamp < self._last and _epoch_seconds(stamp) < _epoch_seconds(self._last) - _OVERLAP_S:
            self._newest.clear()  # the clock was set back
        newest, pieces = self._newest.get(stream, ("", 0))
        self._newest[stream] = (stamp, pieces + 1 if stamp == newest else 1)
        self._last = stamp
        return True

    def since(self) -> str | None:
        """Return the ``since`` parameter for a new connection; ``None`` before the first entry."""
        return str(_epoch_seconds(self._last) - _OVERLAP_S) if self._last else None

    def is_after(self, stamp: str) -> bool:
        """Return whether the newest entry is later than ``stamp`` by more than the overlap. Time zones may differ."""
        if not self._last or not stamp:
            return False
        moment = datetime.fromisoformat(re.sub(r"\.\d+", "", stamp).replace("Z", "+00:00"))
        return _epoch_seconds(self._last) - _OVERLAP_S > moment.timestamp()


class LogFollower:
    """Reads one container's output in a thread until the container ends.

    Parameters
    ----------
    client:
        The ``APIClient`` for the thread.
    container:
        The container's id.
    has_ended:
        Function that returns whether the container has ended or no longer exists.
    tail:
        Number of existing log entries to read before new output; ``None`` for all.
    """

    def __init__(
        self, client: APIClient, container: str, has_ended: Callable[[], bool], tail: int | None = None
    ) -> None:
        self._client = client
        self._container = container
        self._has_ended = has_ended
        self._tail = tail
        self._position = ReadPosition()
        self._assemblers = {1: LineAssembler(), 2: LineAssembler()}
        self._queue = LineQueue()
        self._closed = threading.Event()
        self._response: object = None
        self.ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread. Call this again after each restart of the container."""
        self.ended.clear()
        self._thread = threading.Thread(target=self._run, name=f"paceline-log-{self._container[:12]}", daemon=True)
        self._thread.start()

    def take_lines(self) -> list[str]:
        """Return the lines that have arrived since the last call."""
        return self._queue.take()

    def close(self) -> None:
        """Stop reading and end the thread; the container continues."""
        self._closed.set()
        self._queue.close()
        thread, response = self._thread, self._response
        if response is not None:
            _shut_down_socket(response)
        if thread is not None and thread is not threading.current_thread():
            thread.join(0.5)  # before the job's first output, there is no response to shut down: the thread ends later

    def _run(self) -> None:
        try:
            self._read_until_end()
        except Exception as error:
            if not self._closed.is_set():
                log.error("Reading the job's output failed: %s", error, exc_info=error)
                self._wait_for_end()
        finally:
            self._queue.put([line for assembler in self._assemblers.values() for line in assembler.flush()])
            self.ended.set()

    def _read_until_end(self) -> None:
        failures = 0
        while not self._closed.is_set():
            try:
                self._read_connection(follow=True)
                if self._has_ended():
                    # The stream may have broken just before its end: read any missing lines.
                    self._read_connection(follow=False)
                    return
                if failures:
                    log.info("The Docker engine is responding again; resuming the job's output")
                failures = 0
            except RuntimeUnavailableError as error:
                if failures == 0 and not self._closed.is_set():
                    log.warning("The Docker engine is not responding; it keeps the job's output in its log. %s", error)
                failures += 1
            except JobLostError:
                return  # the container was removed; status() reports this
            self._closed.wait(_BACKOFF_S[min(failures, len(_BACKOFF_S) - 1)])

    def _wait_for_end(self) -> None:
        """Poll the container's status until the container ends, after its output could not be read."""
        while not self._closed.wait(1.0):
            with contextlib.suppress(PacelineError):
                if self._has_ended():
                    return

    def _read_connection(self, *, follow: bool) -> None:
        """Read output from one connection until the connection ends. A timeout or ``close`` is not an error."""
        import requests.exceptions
        import urllib3.exceptions

        self._position.reconnect()
        if self._position.since() is not None:
            self._check_engine_clock()
        parser = FrameParser()
        try:
            for data in self._connect(follow):
                lines: list[str] = []
                for stream, payload in parser.feed(data):
                    stamp, _, content = payload.partition(b" ")
                    if self._position.is_new(stream, stamp.decode("ascii", "replace")):
                        lines += self._assemblers[2 if stream == 2 else 1].feed(content)
                self._queue.put(lines)
                if self._closed.is_set():
                    return
        except (requests.exceptions.RequestException, urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            timed_out = "timed out" in str(error).lower()
            if not timed_out and not self._closed.is_set():
                raise RuntimeUnavailableError(f"reading the output was interrupted: {error}") from error

    def _check_engine_clock(self) -> None:
        """Restart at the first line if the engine's clock was set back, because new entries would look old."""
        with engine_call("read the engine's clock"):
            engine_time = str(self._client.info().get("SystemTime", ""))
        if self._position.is_after(engine_time):
            self._position, self._tail = ReadPosition(), None

    def _connect(self, follow: bool) -> Iterator[bytes]:
        parameters: dict[str, str | int] = {"stdout": 1, "stderr": 1, "timestamps": 1, "follow": int(follow)}
        since = self._position.since()
        if since is not None:
            parameters["since"] = since
        elif self._tail is not None:
            parameters["tail"] = self._tail
        address = f"{self._client.base_url}/v{self._client.api_version}/containers/{self._container}/logs"
        with engine_call("read the job's output"):
            # Do not use client.logs(): it mixes stdout and stderr, and never times out on a dead connection.
            response = self._client.get(
                address, params=parameters, stream=True, timeout=(_CONNECT_S, _READ_S if follow else _CONNECT_S)
            )
            if response.status_code in (404, 409):  # 409: the container is being removed
                response.close()
                raise JobLostError("the container no longer exists")
            if response.status_code != 200:
                body = response.text[:200]
                response.close()
                raise RuntimeUnavailableError(f"could not read the job's output: HTTP {response.status_code} {body}")
        self._response = response
        try:
            yield from response.iter_content(chunk_size=None)
        finally:
            self._response = None
            response.close()


def _shut_down_socket(response: object) -> None:
    """Shut down the response's socket, because closing the response does not interrupt a blocking read."""
    # The connection object has already released the socket; only the response's reader still refers to it.
    sock: object = response
    for name in ("raw", "_fp", "fp", "raw", "_sock"):
        sock = getattr(sock, name, None)
    if isinstance(sock, socket.socket):
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)


def _epoch_seconds(stamp: str) -> int:
    # Not strptime, which imports a module at each call: if Airflow's import timeout interrupts an import in the main
    # thread, Python's import lock can stay acquired, and this thread would wait forever.
    return calendar.timegm(datetime.fromisoformat(stamp[:19]).timetuple())
