"""The trained state as ranges of one vector: the server has the first range, and other processes have the rest.

These processes run ``state_shard``. Used by ``_training``, which serialises access.
"""

from __future__ import annotations

import os
from typing import Any

import torch

from paceline.train._values import log

from ._vector import apply_update
from .peer import DisconnectedError, Peer

_PATIENCE_S = 30.0  # maximum wait for a response; all workers wait during this time


class Holder:
    """The server's view of a process that holds a range.

    Parameters
    ----------
    name:
        Unique name of the process.
    address:
        Host and port at which workers reach the process.
    peer:
        The connection that the process opened.

    Raises
    ------
    DisconnectedError
        Raised by all methods if the process has disconnected.
    """

    def __init__(self, name: str, address: tuple[str, int], peer: Peer) -> None:
        self.name, self.address = name, address
        self._peer = peer
        peer.set_timeout(_PATIENCE_S)

    def set_range(self, version: int, vector: torch.Tensor, total_size: int, summed: int) -> None:
        """Send the process its range ``vector`` of a whole vector of ``total_size`` numbers.

        Changes to the first ``summed`` numbers of the range add up.
        """
        fields = {"dtype": str(vector.dtype).removeprefix("torch."), "whole": total_size, "summed": summed}
        self._request({"kind": "hold", "version": version, **fields}, vector)

    def commit(self, worker: str, number: int, staleness: int) -> None:
        """Make the process apply the update that a worker has sent for a batch."""
        self._request({"kind": "commit", "worker": worker, "number": number, "staleness": staleness})

    def fetch(self, into: torch.Tensor) -> None:
        """Copy the process's range to ``into``."""
        self._request({"kind": "read"}, into=into)

    def end(self) -> None:
        """End the process."""
        self._request({"kind": "end"})
        self._peer.close()

    def close(self) -> None:
        """Close the connection."""
        self._peer.close()

    def _request(
        self, message: dict[str, Any], vector: torch.Tensor | None = None, into: torch.Tensor | None = None
    ) -> None:
        self._peer.send(message, vector)
        try:
            kind = self._peer.receive(into).get("kind")
        except ValueError as error:
            raise DisconnectedError(f"invalid answer: {error}") from None
        if kind != "done":
            raise DisconnectedError(f"unexpected answer: {str(kind)[:40]!r}")


class Spread:
    """A vector of numbers, divided into one equal range per process.

    Workers connect to each process, so updates and states travel over several network links in parallel. The server has
    the first range. To read the whole vector, the server fetches the other ranges.
    """

    def __init__(self) -> None:
        self._vector: torch.Tensor | None = None
        self.summed = 0
        """Length of the first part of the vector, whose changes add up; see ``StateVector``."""
        self._holders: list[Holder] = []
        # The first version is random, so that changes sent for the layout of a previous server are rejected.
        self.version = int.from_bytes(os.urandom(4), "big") + 1
        """Version of the layout of the ranges; messages with an older version are rejected."""

    @property
    def has_state(self) -> bool:
        """Whether the vector has been set."""
        return self._vector is not None

    @property
    def size(self) -> int:
        """Length of the whole vector."""
        assert self._vector is not None
        return len(self._vector)

    @property
    def processes(self) -> int:
        """Number of processes that hold a range."""
        return 1 + len(self._holders)

    def set_initial_state(self, vector: torch.Tensor, summed: int) -> None:
        """Set the vector, and distribute its ranges."""
        self._vector, self.summed = vector, summed
        self._distribute()

    def own_range(self) -> torch.Tensor:
        """Return the server's range of the vector. Changes to the result change the vector."""
        assert self._vector is not None
        return self._vector[: self._start(1)]

    def commit(self, worker: str, number: int, update: torch.Tensor, staleness: int) -> None:
        """Apply ``update`` to the server's range; other processes apply the update that they received for the batch."""
        apply_update(self.own_range(), update, self._summed_from(0), staleness)
        for holder in self._holders:
            holder.commit(worker, number, staleness)

    def fetch_all(self) -> torch.Tensor:
        """Fetch the newest ranges from all processes and return the whole vector."""
        assert self._vector is not None
        for index, holder in enumerate(self._holders, start=1):
            holder.fetch(self._vector[self._start(index) : self._start(index + 1)])
        return self._vector

    def layout(self) -> dict[str, Any]:
        """Return the address and range of each process, as a message for workers."""
        places = range(1, self.processes)
        others = [
            [*holder.address, self._start(index), self._start(index + 1)]
            for index, holder in zip(places, self._holders, strict=True)
        ]
        return {"version": self.version, "own": self._start(1), "others": others}

    def join(self, holder: Holder) -> None:
        """Add a holder, and redistribute the ranges."""
        if self._vector is not None:
            self.fetch_all()
        self._holders.append(holder)
        self._distribute()

    def leave(self, name: str) -> bool:
        """Remove a holder; return whether it held a range."""
        leaving = [holder for holder in self._holders if holder.name == name]
        if not leaving:
            return False
        if self._vector is not None:
            self.fetch_all()
        self._holders = [holder for holder in self._holders if holder.name != name]
        self._distribute()
        for holder in leaving:
            self._release(holder)
        return True

    def end(self) -> None:
        """Fetch the whole vector and end all holders."""
        if self._vector is not None:
            self.fetch_all()
        for holder in self._holders:
            self._release(holder)
        self._holders = []
        self.version += 1

    def _release(self, holder: Holder) -> None:
        try:
            holder.end()
        except DisconnectedError:
            holder.close()

    def _distribute(self) -> None:
        """Distribute the ranges. Remove a holder that fails; no data is lost: the server has the whole vector."""
        self.version += 1
        for index, holder in enumerate(self._holders, start=1):
            if self._vector is None:
                continue
            section = self._vector[self._start(index) : self._start(index + 1)]
            try:
                holder.set_range(self.version, section, len(self._vector), self._summed_from(index))
            except DisconnectedError as error:
                log(f"{holder.name} cannot hold its shard of the state: {error}")
                holder.close()
                self._holders = [other for other in self._holders if other is not holder]
                return self._distribute()
        return None

    def _summed_from(self, index: int) -> int:
        """Return how many numbers of a range add up."""
        return max(min(self.summed, self._start(index + 1)) - self._start(index), 0)

    def _start(self, index: int) -> int:
        """Return the position in the vector at which a range starts."""
        return round(self.size * index / self.processes) if self._vector is not None else 0
