"""A worker's connection to the parameter server, through which it exchanges the state. Used by ``worker``."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from paceline.train._values import log
from paceline.train.job import EXIT_EXCLUDED, EXIT_REJECTED

from ._kept import allocate_packed
from ._ranges import Ranges
from ._vector import StateVector
from .peer import DisconnectedError, Peer, connect, parse_address

# The layout changes rarely: a worker reconnects to the server after this many failed attempts to use the layout.
_MAX_TRIES, _PAUSE_S = 20, 0.1


class ServerConnection:
    """Sends requests to the parameter server, and exchanges the state with all its holders.

    Parameters
    ----------
    worker:
        Name of the worker in the schedule.
    server:
        ``host:port`` of the parameter server.
    key:
        The secret that the server requires; empty for none.

    Raises
    ------
    DisconnectedError
        Raised by all methods that communicate if the server has disconnected.
    SystemExit
        Raised by the same methods if the server rejects the worker.
    """

    def __init__(self, worker: str, server: str, key: bytes) -> None:
        self.address = parse_address(server)
        self._worker, self._key = worker, key
        self.peer: Peer | None = None
        """The server; ``None`` while disconnected."""
        self._ranges = Ranges(worker, key)
        self.state: Any = None
        """The state at the start of the current batch, as a flat vector; the worker sets it before ``join``."""
        self._received: Any = None  # the kept state that the server has sent
        self.progress = {"done": 0, "total": 1, "epochs": 1, "samples": 0, "size": 0}
        """The progress that the server has reported last."""
        self.waiting = False
        """Whether this process waits for the server, so that SIGTERM may end it immediately."""

    def join(self, fields: dict[str, Any], vector: StateVector) -> int:
        """Connect, join the job, and fetch the state. Return the number of the connection.

        ``fields`` describe the worker. The first worker sends the numbers of its ``vector`` as the initial state.
        """
        self.close()
        with self.interruptible():
            self.peer = connect(*self.address, self._key)
        answer = self.request({"kind": "hello", "worker": self._worker, **fields})
        if answer["kind"] == "begin":
            answer = self.request({"kind": "state"}, vector.read())
        self._use_layout(answer["layout"])
        self._fetch_state()
        client: int = answer["client"]
        return client

    def request(self, message: dict[str, Any], vector: Any = None) -> dict[str, Any]:
        """Send a message and return the response. If a state follows, read it into the start of ``state``."""
        assert self.peer is not None
        self.peer.send(message, vector)
        with self.interruptible():
            answer = self.peer.receive(self._allocate)
        if answer["kind"] in ("excluded", "rejected"):
            log(f"rejected by the parameter server: {answer['why']}")
            raise SystemExit(EXIT_EXCLUDED if answer["kind"] == "excluded" else EXIT_REJECTED)
        if "done" in answer:
            self.progress = {key: answer[key] for key in self.progress}
        return answer

    def _allocate(self, answer: dict[str, Any], length: int) -> Any:
        if answer["kind"] == "kept":
            self._received = allocate_packed(length, len(self.state))
            return self._received
        return self.state[:length]

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """Let SIGTERM raise ``SystemExit`` here, because the wait may be long."""
        self.waiting = True
        try:
            yield
        finally:
            self.waiting = False

    def request_kept(self) -> Any:
        """Return the packed state that the server keeps for the worker; ``None`` if there is none."""
        self._received = None
        self.request({"kind": "restore"})
        received, self._received = self._received, None
        return received

    def send_update(self, fields: dict[str, Any], update: Any) -> None:
        """Send a batch's update to all holders of the state, and fetch the newest state."""
        if not update.isfinite().all():
            self.request({"kind": "not finite"})  # the server then closes the connection
        for _ in range(_MAX_TRIES):
            if self._try_ranges(self._ranges.push, fields["number"], update):
                version = {"version": self._ranges.version}
                answer = self.request({"kind": "done", **fields, **version}, self._ranges.server_range(update))
                self._use_layout(answer["layout"])
                if answer["kind"] != "moved":
                    return self._fetch_state()
            else:
                self._use_layout(self._request_layout())
        raise DisconnectedError("the layout of the state keeps changing")

    def _fetch_state(self) -> None:
        """Fetch the ranges of the other holders. The server has already sent its range."""
        for _ in range(_MAX_TRIES):
            if self._try_ranges(self._ranges.pull, self.state):
                return
            self._use_layout(self._request_layout())
        raise DisconnectedError("the layout of the state keeps changing")

    def _request_layout(self) -> dict[str, Any]:
        """Request the current layout of the state."""
        layout: dict[str, Any] = self.request({"kind": "where"})["layout"]
        return layout

    def _use_layout(self, layout: dict[str, Any]) -> None:
        """Connect to the holders of a layout. Retry, because a holder that has just left may still be in the layout."""
        for _ in range(_MAX_TRIES):
            if self._try_ranges(self._ranges.use_layout, layout):
                return
            time.sleep(_PAUSE_S)
            layout = self._request_layout()
        raise DisconnectedError("a shard of the state cannot be reached")

    def _try_ranges(self, operation: Callable[..., bool], *arguments: Any) -> bool:
        """Run an operation on all holders; return whether it succeeded.

        If a holder has disconnected, the server checks whether the holder has returned its range.
        """
        try:
            return operation(*arguments)
        except DisconnectedError:
            self._ranges.close()
            self.request({"kind": "check"})
            return False

    def close(self) -> None:
        """Disconnect from the server and the other holders."""
        self._ranges.close()
        if self.peer is not None:
            self.peer.close()
            self.peer = None
