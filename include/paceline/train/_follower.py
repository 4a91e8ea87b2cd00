"""A process that trains its part of each batch at the lead's word. Started by ``_lead``, driven by ``_loop``."""

from __future__ import annotations

import os
import signal
import socket
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from . import _rng
from ._checkpoint import put_back
from ._part import check_divisible, loader_over
from ._threads import one_on_cpu
from ._values import say
from ._wire import BatchShare, Wire

if TYPE_CHECKING:
    from ._protocols import BatchLoop, LoopSession
    from ._replica import Replica

# Set by the lead: the socket to it, and which device is this process's.
ENV_SOCKET = "PACELINE_LEAD_SOCKET"
ENV_DEVICE = "PACELINE_DEVICE_INDEX"


class Follower:
    """This process's side of the connection to the lead.

    Parameters
    ----------
    replica:
        The model.
    wire:
        The connection.
    """

    def __init__(self, replica: Replica, wire: Wire) -> None:
        self._replica = replica
        self._wire = wire
        self._inbox: deque[Any] = deque()  # a go or an order, oldest first
        self._assigned: deque[BatchShare] = deque()
        self._shares: deque[float] = deque()
        self._epochs = 0  # opened so far

    @classmethod
    def in_this_process(cls, replica: Replica, environ: Mapping[str, str] = os.environ) -> Follower | None:
        """The connection that the lead left to this process; ``None`` if this process is no follower."""
        if ENV_SOCKET not in environ:
            return None
        # Who stops a job asks all of its processes to end: the lead saves first, and its followers go when it has.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        return cls(replica, Wire(socket.socket(fileno=int(environ[ENV_SOCKET]))))

    @staticmethod
    def device_index() -> int:
        """Which device is this process's, counted from 0."""
        return int(os.environ.get(ENV_DEVICE, "0"))

    def batches(self, loop: BatchLoop, loader: Any, session: LoopSession) -> Iterator[Any]:
        """Give this process's part of each batch, until the lead dismisses it; that ends the process.

        A loop that the lead has behind it is passed over.
        """
        check_divisible(loader)
        one_on_cpu()
        number = session.loops_begun
        session.loops_begun += 1
        session.loop = loop
        mine: Iterator[Any] = iter(())
        part = loader_over(loader, _Assigned(self, loader.batch_sampler))
        try:
            self._wire.send({"loop": number})
            while True:
                word = self._next()
                if word == "go":
                    batch = next(mine)
                    self._replica.share = self._shares.popleft()
                    yield batch
                    loop.done += 1
                elif word["order"] == "skip":
                    return
                elif word["order"] == "leave":
                    self._replica.part()
                    raise SystemExit(0)
                else:
                    self._take_place(word, session)
                    loop.stand_at(word["epoch"], word["batch"], word["done"])
                    mine = iter(part)
        except (EOFError, ConnectionError):
            raise SystemExit(0) from None  # the lead has gone, and has said why
        except GeneratorExit:
            # It must not go on to what comes after the loop, and there is nobody here to raise to.
            say("a data-parallel process left the loop by itself: it ends here")
            os._exit(0)
        finally:
            session.loop = None

    def assignments(self) -> Iterator[Sequence[int]]:
        """The indices of the samples to read in the epoch that is open, as they come in."""
        epoch = self._epochs
        while True:
            while not self._assigned and self._epochs == epoch:
                self._receive()
            if self._epochs != epoch or not (assignment := self._assigned.popleft()).indices:
                return
            self._shares.append(assignment.share)
            yield assignment.indices

    def _next(self) -> Any:
        while not self._inbox:
            self._receive()
        return self._inbox.popleft()

    def _receive(self) -> None:
        word = self._wire.receive()
        if isinstance(word, BatchShare):
            self._assigned.append(word)
            return
        if isinstance(word, dict) and word["order"] == "open":
            self._assigned.clear()  # what was to come of the epoch before will not
            self._epochs += 1
        self._inbox.append(word)

    def _take_place(self, order: dict[str, Any], session: LoopSession) -> None:
        """Become part of the group if the order says so."""
        self._shares.clear()
        if "parts" in order:
            put_back(session.parts, order["parts"], "the first process")
        if "file" in order:
            self._replica.join(order["file"], order["rank"], order["world"])
            # Else all would drop out the same and augment alike: they have run the same script.
            _rng.go_own_way(order["rank"], order["done"])


class _Assigned:
    """A batch sampler of what the lead hands out."""

    def __init__(self, follower: Follower, whole: Any) -> None:
        self._follower = follower
        self._whole = whole

    def __iter__(self) -> Iterator[Sequence[int]]:
        return self._follower.assignments()

    def __len__(self) -> int:
        return len(self._whole)
