"""A follower process of data-parallel training: trains its slice of each batch under the lead's control.

Started by ``_lead``, run by ``_loop``.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from paceline.train._loaders import check_divisible, with_batch_sampler
from paceline.train._samples import data_checksum
from paceline.train._source import BatchSource, LoopState, SessionState
from paceline.train._values import log
from paceline.train.job import ENV_LEAD, device_index
from paceline.train.pacing.threads import use_one_thread_on_cpu
from paceline.train.saving import data, rng
from paceline.train.saving.checkpoint import Resume

from ._arrivals import SAME_CALLS
from ._slices import SlicedBatches
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
        """End the process if the training code has left the loop, because the code after the loop must not run here."""
        data.end_workers_at_exit(self._loader)
        if self._must_stay:
            error = sys.exc_info()[1]
            if error is not None and not isinstance(error, GeneratorExit):  # an error in the loader or in its data set
                traceback.print_exc()
            log(f"a data-parallel process left the loop at {_training_line()} (error or break): the process ends")
            os._exit(1)

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
                        "expected a sampler that draws at the start of each epoch, from the generators of torch, "
                        "random or numpy or from the loader's, and does not depend on earlier epochs"
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
            return data.start_epoch(self._loader, loop.epoch)
        group = command["group"]
        self._rank, world_size = group["rank"], group["world"]
        self._replica.join(group["file"], self._rank, world_size, self._session.parts if group["joining"] else {})
        self._replica.accumulates |= group["accumulates"]
        sampler = loop.loader.batch_sampler
        self._slices = SlicedBatches(sampler, self._rank, world_size, self._replica.min_samples)
        self._loader = with_batch_sampler(loop.loader, self._slices)
        return data.resume_epoch(
            self._loader, loop.epoch, Resume(loop.position(), command["start"], command["now"], {})
        )

    def _receive(self) -> Any:
        arrivals = self._replica.arrivals
        try:
            with arrivals.idle() if arrivals is not None else nullcontext():
                return self._wire.receive()
        except (EOFError, ConnectionError):  # the lead has ended and logged the reason
            self._end_process()

    def _end_process(self) -> NoReturn:
        self._must_stay = False
        raise SystemExit(0)


def _training_line() -> str:
    """Return the current line of the training code. A generator that Python closes does not see the error."""
    package = str(Path(__file__).parents[1])
    for frame in reversed(traceback.extract_stack()):
        if not frame.filename.startswith(package):
            return f"line {frame.lineno} of {frame.filename}"
    return "an unknown line"
