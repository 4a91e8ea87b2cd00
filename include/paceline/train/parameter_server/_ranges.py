"""A worker's connections to the processes that hold ranges of the state. Used by ``_connection``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

from ._limits import MAX_PROCESSES, count
from .peer import Peer, connect

if TYPE_CHECKING:
    import torch

_TIMEOUT_S = 60.0  # maximum wait for the response of a process


class Ranges:
    """Exchanges data with all processes in parallel: sends ranges of an update and fetches ranges of the state.

    Parameters
    ----------
    worker:
        The worker's name.
    key:
        The secret that the processes require; empty for none.

    Raises
    ------
    DisconnectedError
        Raised by all methods if a process has disconnected.
    """

    def __init__(self, worker: str, key: bytes) -> None:
        self._worker, self._key = worker, key
        self.version = 0
        """Version of the layout in use."""
        self._server_size = 0
        self._others: list[tuple[tuple[str, int], slice]] = []
        self._peers: dict[tuple[str, int], Peer] = {}
        self._threads: ThreadPoolExecutor | None = None

    def use_layout(self, layout: Mapping[str, Any]) -> bool:
        """Connect to the processes in the parameter server's ``layout``. Always return true."""
        if layout["version"] == self.version:
            return True
        count("processes", len(layout["others"]), MAX_PROCESSES)
        self._server_size = layout["own"]
        self._others = [((host, port), slice(begin, end)) for host, port, begin, end in layout["others"]]
        addresses = [address for address, _ in self._others]
        for address in [known for known in self._peers if known not in addresses]:
            self._peers.pop(address).close()
        for address in addresses:
            if address not in self._peers:
                self._peers[address] = connect(*address, self._key)
                self._peers[address].set_timeout(_TIMEOUT_S)
                self._peers[address].send({"worker": self._worker})
        if self._others and self._threads is None:
            self._threads = ThreadPoolExecutor(thread_name_prefix="ranges")
        self.version = layout["version"]
        return True

    def server_range(self, vector: torch.Tensor) -> torch.Tensor:
        """Return the parameter server's range of ``vector``."""
        return vector[: self._server_size]

    def push(self, number: int, update: torch.Tensor) -> bool:
        """Send the update of a batch; return false if a process rejected it, because the ranges have changed."""

        def send(peer: Peer, section: slice) -> bool:
            peer.send({"kind": "push", "version": self.version, "number": number}, update[section])
            return bool(peer.receive()["kind"] == "kept")

        return all(self._run_all(send))

    def pull(self, state: torch.Tensor) -> bool:
        """Fetch the newest ``state``; return false if it is incomplete, because the ranges have changed."""

        def fetch(peer: Peer, section: slice) -> bool:
            peer.send({"kind": "pull", "version": self.version})
            return bool(peer.receive(state[section])["kind"] == "state")

        return all(self._run_all(fetch))

    def close(self) -> None:
        """Disconnect from all processes."""
        for peer in self._peers.values():
            peer.close()
        self._peers, self._others, self._server_size, self.version = {}, [], 0, 0
        if self._threads is not None:
            self._threads.shutdown(wait=False)
            self._threads = None

    def _run_all(self, request: Callable[[Peer, slice], bool]) -> Sequence[bool]:
        if self._threads is None:
            return []
        futures = [self._threads.submit(request, self._peers[address], section) for address, section in self._others]
        wait(futures)  # wait for all requests even if one fails, because all of them write into the same vector
        return [future.result() for future in futures]
