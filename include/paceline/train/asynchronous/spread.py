"""The state of a training as ranges of one row: the first here, each other one in a process of its own, see ``part``.

Kept by ``training``, which lets one thread in at a time.
"""

from __future__ import annotations

import os
from typing import Any

import torch

from paceline.train._values import say

from .peer import GoneError, Peer

_PATIENCE_S = 30.0  # everybody waits meanwhile


class Holder:
    """A process that holds a range, as the server sees it; all it is asked, it answers.

    Parameters
    ----------
    name:
        Its own.
    address:
        Host and port where workers reach it.
    peer:
        The connection that it came with.

    Raises
    ------
    GoneError
        From all methods, when it has gone.
    """

    def __init__(self, name: str, address: tuple[str, int], peer: Peer) -> None:
        self.name, self.address = name, address
        self._peer = peer
        peer.be_patient(_PATIENCE_S)

    def hold(self, version: int, row: torch.Tensor, whole: int) -> None:
        """Give it a range to hold, in place of any before, of a row that is ``whole`` numbers long."""
        dtype = str(row.dtype).removeprefix("torch.")
        self._ask({"kind": "hold", "version": version, "dtype": dtype, "whole": whole}, row)

    def commit(self, worker: str, number: int) -> None:
        """Let it add what a worker has sent it of a batch."""
        self._ask({"kind": "commit", "worker": worker, "number": number})

    def give(self, into: torch.Tensor) -> None:
        """Fetch its range."""
        self._ask({"kind": "give"}, into=into)

    def end(self) -> None:
        """Let it go."""
        self._ask({"kind": "end"})
        self._peer.close()

    def close(self) -> None:
        """End the connection, whatever becomes of it."""
        self._peer.close()

    def _ask(self, words: dict[str, Any], row: torch.Tensor | None = None, into: torch.Tensor | None = None) -> None:
        self._peer.send(words, row)
        answer = self._peer.receive(into)
        if answer["kind"] != "done":
            raise GoneError(f"it says {answer['kind']}")


class Spread:
    """A row of numbers, cut into as many equal ranges as there are processes to hold them.

    Workers reach each process by itself, so that what they send and fetch goes over several links at the same time.
    The first range is the server's own; whoever asks for the whole row makes it fetch the others.
    """

    def __init__(self) -> None:
        self._row: torch.Tensor | None = None
        self._holders: list[Holder] = []
        # Not that of a server that had died: what was sent of its ranges is not taken for what is sent of these.
        self.version = int.from_bytes(os.urandom(4), "big") + 1
        """Changes with the ranges: what was said of others before does not count any more."""

    @property
    def begun(self) -> bool:
        """Whether there is a row."""
        return self._row is not None

    @property
    def size(self) -> int:
        """Of the whole row."""
        assert self._row is not None
        return len(self._row)

    @property
    def processes(self) -> int:
        """How many hold a range."""
        return 1 + len(self._holders)

    def begin_with(self, row: torch.Tensor) -> None:
        """Take a row, and hand its ranges out."""
        self._row = row
        self._deal()

    def own(self) -> torch.Tensor:
        """The server's own range, to read and to change."""
        assert self._row is not None
        return self._row[: self._cut(1)]

    def commit(self, worker: str, number: int, change: torch.Tensor) -> None:
        """Add a batch's change: the own range of it is here, of the others their processes have been sent it."""
        self.own().add_(change)
        for holder in self._holders:
            holder.commit(worker, number)

    def whole(self) -> torch.Tensor:
        """The whole row, as it is now."""
        assert self._row is not None
        for place, holder in enumerate(self._holders, start=1):
            holder.give(self._row[self._cut(place) : self._cut(place + 1)])
        return self._row

    def layout(self) -> dict[str, Any]:
        """Who holds what, in words for a worker."""
        places = range(1, self.processes)
        others = [
            [*holder.address, self._cut(place), self._cut(place + 1)]
            for place, holder in zip(places, self._holders, strict=True)
        ]
        return {"version": self.version, "own": self._cut(1), "others": others}

    def join(self, holder: Holder) -> None:
        """One more holds a range from now on."""
        if self._row is not None:
            self.whole()
        self._holders.append(holder)
        self._deal()

    def leave(self, name: str) -> bool:
        """One holds no range any more; returns whether it did."""
        leaving = [holder for holder in self._holders if holder.name == name]
        if not leaving:
            return False
        if self._row is not None:
            self.whole()
        self._holders = [holder for holder in self._holders if holder.name != name]
        self._deal()
        for holder in leaving:
            self._let_go(holder)
        return True

    def end(self) -> None:
        """All is done: nobody needs to hold anything any more. The whole row is here then."""
        if self._row is not None:
            self.whole()
        for holder in self._holders:
            self._let_go(holder)
        self._holders = []
        self.version += 1

    def _let_go(self, holder: Holder) -> None:
        try:
            holder.end()
        except GoneError:
            holder.close()

    def _deal(self) -> None:
        """Hand the ranges out. Who cannot take one is left out: nothing is lost, as the whole row is here."""
        self.version += 1
        for place, holder in enumerate(self._holders, start=1):
            if self._row is None:
                continue
            try:
                holder.hold(self.version, self._row[self._cut(place) : self._cut(place + 1)], len(self._row))
            except GoneError as error:
                say(f"{holder.name} cannot hold its part of the state: {error}")
                holder.close()
                self._holders = [one for one in self._holders if one is not holder]
                return self._deal()
        return None

    def _cut(self, place: int) -> int:
        """Where a range begins."""
        return round(self.size * place / self.processes) if self._row is not None else 0
