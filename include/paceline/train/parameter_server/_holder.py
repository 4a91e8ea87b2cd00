"""The server's view of a process that holds a range of the state; these processes run ``state_shard``.

Used by ``_state``, which serialises access.
"""

from __future__ import annotations

from typing import Any

import torch

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
