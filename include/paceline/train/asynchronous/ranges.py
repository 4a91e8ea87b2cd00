"""A worker's way to the processes that hold ranges of the state, beside the parameter server. Used by ``worker``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

from .peer import Peer, reach

if TYPE_CHECKING:
    import torch

_PATIENCE_S = 60.0  # for one that says nothing at all


class Ranges:
    """Sends each process its range of a change, and fetches the state range by range; all at the same time.

    Parameters
    ----------
    worker:
        The worker's name.
    key:
        The secret that the processes ask for; empty for none.

    Raises
    ------
    GoneError
        From all methods, when a process has gone.
    """

    def __init__(self, worker: str, key: bytes) -> None:
        self._worker, self._key = worker, key
        self.version = 0
        """Of the layout that is followed."""
        self._own = 0
        self._others: list[tuple[tuple[str, int], slice]] = []
        self._peers: dict[tuple[str, int], Peer] = {}
        self._threads: ThreadPoolExecutor | None = None

    def follow(self, layout: Mapping[str, Any]) -> bool:
        """Take in who holds what, as the parameter server says it; returns True."""
        if layout["version"] == self.version:
            return True
        self._own = layout["own"]
        self._others = [((host, port), slice(begin, end)) for host, port, begin, end in layout["others"]]
        addresses = [address for address, _ in self._others]
        for address in [one for one in self._peers if one not in addresses]:
            self._peers.pop(address).close()
        for address in addresses:
            if address not in self._peers:
                self._peers[address] = reach(*address, self._key)
                self._peers[address].be_patient(_PATIENCE_S)
                self._peers[address].send({"worker": self._worker})
        if self._others and self._threads is None:
            self._threads = ThreadPoolExecutor(thread_name_prefix="ranges")
        self.version = layout["version"]
        return True

    def own(self, row: torch.Tensor) -> torch.Tensor:
        """The range that the parameter server itself holds."""
        return row[: self._own]

    def push(self, number: int, change: torch.Tensor) -> bool:
        """Send the change that a batch has made; returns whether all have it: not if the ranges have moved."""

        def send(peer: Peer, place: slice) -> bool:
            peer.send({"kind": "push", "version": self.version, "number": number}, change[place])
            return bool(peer.receive()["kind"] == "kept")

        return all(self._with_all(send))

    def pull(self, state: torch.Tensor) -> bool:
        """Fetch the newest ``state``; returns whether it has come: not if the ranges have moved."""

        def fetch(peer: Peer, place: slice) -> bool:
            peer.send({"kind": "pull", "version": self.version})
            return bool(peer.receive(state[place])["kind"] == "state")

        return all(self._with_all(fetch))

    def close(self) -> None:
        """Leave all of them."""
        for peer in self._peers.values():
            peer.close()
        self._peers, self._others, self._own, self.version = {}, [], 0, 0
        if self._threads is not None:
            self._threads.shutdown(wait=False)
            self._threads = None

    def _with_all(self, act: Callable[[Peer, slice], bool]) -> Sequence[bool]:
        if self._threads is None:
            return []
        asked = [self._threads.submit(act, self._peers[address], place) for address, place in self._others]
        wait(asked)  # for all, also where one fails: they write into the same row
        return [one.result() for one in asked]
