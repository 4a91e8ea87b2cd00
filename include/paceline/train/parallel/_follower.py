"""A follower process of data-parallel training: trains its slice of each batch under the lead's control.

Started by ``_lead``, run by ``_loop``.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from paceline.train._leaving import LoopExit
from paceline.train._loaders import check_divisible, with_batch_sampler
from paceline.train._samples import data_checksum
from paceline.train._source import BatchSource, LoopState, SessionState
from paceline.train._values import log
from paceline.train.job import ENV_LEAD, device_index
from paceline.train.pacing.threads import use_one_thread_on_cpu
from paceline.train.saving import data, rng
from paceline.train.saving.checkpoint import Resume

from ._arrivals import SAME_CALLS
from ._process import LEFT
from ._slices import EXPECTED_SAMPLER, SlicedBatches
from ._wire import BatchStart, Wire

if TYPE_CHECKING:
    from ._replica import Replica


class Follower(BatchSource):
    """Executes the commands of the lead in this process.

    Parameters
    ----------
    replica:
        This process's copy of the model.
    wire:
        The connection to the lead.
    """

    reads_epochs = False

    def __init__(self, replica: Replica, wire: Wire) -> None:
        super().__init__()
        self._replica = replica
        self._wire = wire
        self._rank = 0
        self._loader: Any = None
        self._slices: SlicedBatches | None = None
        self._must_stay = False

    @classmethod
    def from_environment(cls, replica: Replica, environ: Mapping[str, str] = os.environ) -> Follower | None:
        """Return the follower that the environment describes; ``None`` if this process is not a follower."""
        if ENV_LEAD not in environ:
            return None
        # SIGTERM reaches all processes of a job. Ignore it: the lead saves and then dismisses its followers.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        return cls(replica, Wire(socket.socket(fileno=int(environ[ENV_LEAD]))))

    def open(self, loop: LoopState, session: SessionState) -> None:
        """Inform the lead that this process has reached the loop."""
        super().open(loop, session)
        check_divisible(loop.loader)
        use_one_thread_on_cpu()
        self._must_stay = True
        try:
            self._wire.send({"loop": session.loops_started, "data": data_checksum(loop.loader)})
        except OSError:
            self._end_process()

    def passes(self, resume: Resume | None) -> Iterator[Iterator[Any]]:
        """Yield this process's slices of the batches, until the lead dismisses the process or completes the loop."""
        yield self._batches()

    def adapt(self, now_s: float) -> bool:
        """Do nothing: the lead adapts the number of processes."""
        return False

    def end(self, *, stopped: bool) -> None:
        """After an early stop, wait for the lead, which must have stopped at the same batch."""
        if not stopped:
            return
        while isinstance(message := self._receive(), dict) and message["command"] == "compare":
            self._compare()
        if isinstance(message, dict) and message["command"] == "leave":
            self._replica.leave()
            os._exit(0)  # Python ignores an exception if the training code has left the loop
        log(
            f"data_parallel: stop_early() was called in the process on device {device_index()} after "
            f"{self._loop.done} batches, but not in the first process: base the decision on a value that is the same "
            "in all processes"
        )
        os._exit(1)

    def close(self) -> None:
        """Leave the group if the training code has left the loop, because the code after the loop must not run here.

        After an exception the process ends by it, so that Python prints it.
        """
        data.end_workers_at_exit(self._loader)
        if not self._must_stay:
            return
        place = LoopExit()
        if self._lead_has_left():  # and shows its own error
            os._exit(1)
        with contextlib.suppress(OSError, RuntimeError):
            self._wire.send({"failed": f"left the loop at {place} by an exception" if place.is_error else LEFT % place})
            if not place.is_error:
                os._exit(1)
            self._wire.close()
            self._replica.leave()

    def _batches(self) -> Iterator[Any]:
        batches: Iterator[Any] = iter(())
        draws_as_lead = False  # whether the random numbers are still those of the lead
        while True:
            message = self._receive()
            if isinstance(message, BatchStart):
                assert self._slices is not None
                if self._replica.arrivals is not None and not message.is_after(self._replica.arrivals.count):
                    log(
                        f"data_parallel: before batch {self._loop.done}, the process on device {device_index()} has "
                        f"called the model or backward() more or less often than the first process: {SAME_CALLS}"
                    )
                    os._exit(1)
                batch = next(batches)
                part = self._slices.take(self._loop.batch)
                if part.checksum != message.checksum:
                    log(
                        "data_parallel: the sampler yields different samples in this process and in the first process: "
                        f"{EXPECTED_SAMPLER}"
                    )
                    os._exit(1)
                if draws_as_lead:  # otherwise, all processes would draw the same dropout masks and augmentations
                    rng.reseed(self._rank, self._loop.done)
                    draws_as_lead = False
                self._replica.start_batch(part.weight, part.samples)
                yield batch
            elif message["command"] == "skip":
                self._must_stay = False
                return
            elif message["command"] == "compare":
                self._compare()
            elif message["command"] == "share gradients":
                self._replica.share_gradients()
            elif message["command"] == "leave":
                self._replica.leave()
                self._end_process()
            else:
                batches, draws_as_lead = self._open_epoch(message), True

    def _compare(self) -> None:
        from ._agreement import DifferentStates

        try:
            self._replica.compare(self._session.parts, self._loop.done)
        except DifferentStates:  # the lead raises the same error
            os._exit(1)
        except RuntimeError:
            log(f"data_parallel: the process on device {device_index()} could not compare its state: {SAME_CALLS}")
            os._exit(1)

    def _open_epoch(self, command: dict[str, Any]) -> Iterator[Any]:
        """Start an epoch, or continue in a new group, with the random states of the lead."""
        loop = self._loop
        loop.set_position(**command["position"])
        if "group" not in command:
            data.rewind(self._loader, command["start"])
            batches = data.start_epoch(self._loader, loop.epoch)
            loop.read_length()
            return batches
        group = command["group"]
        self._rank, world_size = group["rank"], group["world"]
        self._replica.join(group["file"], self._rank, world_size, self._session.parts if group["joining"] else {})
        self._replica.accumulates |= group["accumulates"]
        sampler = loop.loader.batch_sampler
        self._slices = SlicedBatches(sampler, self._rank, world_size, self._replica.min_samples)
        self._loader = with_batch_sampler(loop.loader, self._slices)
        batches = data.resume_epoch(
            self._loader, loop.epoch, Resume(loop.position(), command["start"], command["now"], {})
        )
        loop.read_length()
        return batches

    def _receive(self) -> Any:
        arrivals = self._replica.arrivals
        try:
            with arrivals.idle() if arrivals is not None else contextlib.nullcontext():
                return self._wire.receive()
        except (EOFError, OSError):  # the lead has ended and logged the reason
            self._end_process()

    def _lead_has_left(self) -> bool:
        try:
            while self._wire.is_readable():
                message = self._wire.receive()
                if isinstance(message, dict) and message["command"] == "leave":
                    return True
        except (EOFError, OSError):
            return True
        return False

    def _end_process(self) -> NoReturn:
        self._must_stay = False
        raise SystemExit(0)
