"""A follower process of data-parallel training: trains its shard of each batch under the lead's control.

Started by ``_lead``, run by ``_loop``.
"""

from __future__ import annotations

import os
import signal
import socket
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from paceline.train._values import log
from paceline.train.pacing.threads import use_one_thread_on_cpu
from paceline.train.saving import rng
from paceline.train.saving.checkpoint import restore_parts

from ._sharding import check_divisible, with_batch_sampler
from ._wire import BatchShare, Wire

if TYPE_CHECKING:
    from paceline.train._protocols import BatchLoop, LoopSession

    from ._replica import Replica

# Environment variables that the lead sets: the descriptor of the socket to the lead, the index of the process's device.
ENV_SOCKET = "PACELINE_LEAD_SOCKET"
ENV_DEVICE = "PACELINE_DEVICE_INDEX"


class Follower:
    """Executes the commands of the lead in this process.

    Parameters
    ----------
    replica:
        This process's copy of the model.
    wire:
        The connection to the lead.
    """

    def __init__(self, replica: Replica, wire: Wire) -> None:
        self._replica = replica
        self._wire = wire
        self._inbox: deque[Any] = deque()  # "go" or commands, oldest first
        self._assigned: deque[BatchShare] = deque()
        self._shares: deque[float] = deque()
        self._epochs = 0  # number of epochs started

    @classmethod
    def from_environment(cls, replica: Replica, environ: Mapping[str, str] = os.environ) -> Follower | None:
        """Return the follower that the environment describes; ``None`` if this process is not a follower."""
        if ENV_SOCKET not in environ:
            return None
        # SIGTERM reaches all processes of a job. Ignore it: the lead saves and then dismisses its followers.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        return cls(replica, Wire(socket.socket(fileno=int(environ[ENV_SOCKET]))))

    @staticmethod
    def device_index() -> int:
        """Return the index of this process's device, from 0."""
        return int(os.environ.get(ENV_DEVICE, "0"))

    def batches(self, loop: BatchLoop, loader: Any, session: LoopSession) -> Iterator[Any]:
        """Yield this process's shard of each batch. Exit when the lead dismisses this process.

        Skip a loop that the lead has completed.
        """
        check_divisible(loader)
        use_one_thread_on_cpu()
        number = session.loops_started
        session.loops_started += 1
        session.loop = loop
        own_batches: Iterator[Any] = iter(())
        own_loader = with_batch_sampler(loader, _AssignedBatches(self, loader.batch_sampler))
        try:
            self._wire.send({"loop": number})
            while True:
                message = self._next_message()
                if message == "go":
                    batch = next(own_batches)
                    self._replica.share = self._shares.popleft()
                    yield batch
                    loop.done += 1
                elif message["command"] == "skip":
                    return
                elif message["command"] == "leave":
                    self._replica.leave()
                    raise SystemExit(0)
                else:
                    self._join_group(message, session)
                    loop.set_position(message["epoch"], message["batch"], message["done"])
                    own_batches = iter(own_loader)
        except (EOFError, ConnectionError):
            raise SystemExit(0) from None  # the lead has ended and logged the reason
        except GeneratorExit:
            # Exit immediately: the code after the loop must not run here, and Python would ignore an exception.
            log("a data-parallel process left the loop before the lead dismissed it: the process ends")
            os._exit(0)
        finally:
            session.loop = None

    def assignments(self) -> Iterator[Sequence[int]]:
        """Yield the sample indices of each batch of the current epoch as they arrive."""
        epoch = self._epochs
        while True:
            while not self._assigned and self._epochs == epoch:
                self._receive_message()
            if self._epochs != epoch or not (assignment := self._assigned.popleft()).indices:
                return
            self._shares.append(assignment.share)
            yield assignment.indices

    def _next_message(self) -> Any:
        while not self._inbox:
            self._receive_message()
        return self._inbox.popleft()

    def _receive_message(self) -> None:
        message = self._wire.receive()
        if isinstance(message, BatchShare):
            self._assigned.append(message)
            return
        if isinstance(message, dict) and message["command"] == "open":
            self._assigned.clear()  # discard the remaining batches of the previous epoch
            self._epochs += 1
        self._inbox.append(message)

    def _join_group(self, command: dict[str, Any], session: LoopSession) -> None:
        """Load the states in ``command`` and join the process group that it describes."""
        self._shares.clear()
        if "parts" in command:
            restore_parts(session.parts, command["parts"], "the first process")
        if "file" in command:
            self._replica.join(command["file"], command["rank"], command["world"])
            # With equal seeds, all processes would draw the same dropout masks and augmentations.
            rng.reseed(command["rank"], command["done"])


class _AssignedBatches:
    """A batch sampler that yields the batches assigned by the lead."""

    def __init__(self, follower: Follower, sampler: Any) -> None:
        self._follower = follower
        self._sampler = sampler

    def __iter__(self) -> Iterator[Sequence[int]]:
        return self._follower.assignments()

    def __len__(self) -> int:
        return len(self._sampler)
