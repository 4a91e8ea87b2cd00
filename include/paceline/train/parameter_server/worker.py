"""A worker of training on several machines: runs a ``track`` loop with batches from a parameter server."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from operator import index
from typing import TYPE_CHECKING, Any

import torch

from paceline.train._leaving import LoopExit
from paceline.train._loaders import check_divisible, with_batch_sampler
from paceline.train._source import BatchSource, LoopState, SessionState
from paceline.train._values import bad_value, log, refuse
from paceline.train.job import (
    ENV_EPOCHS,
    ENV_SERVER,
    ENV_SERVER_KEY,
    ENV_WORKER,
    EXIT_NO_SERVER,
    EXIT_REJECTED,
    EXIT_TERMINATED,
    run_by_paceline,
)
from paceline.train.saving import rng
from paceline.train.saving.data import set_epoch

from ._agreement import Description, describe
from ._connection import ServerConnection
from ._kept import KeptParts, max_packed_bytes
from ._momentum import FollowingMomentum
from ._schedules import FollowingScheduler, following_schedulers
from ._vector import StateVector
from .handshake import end_process
from .peer import DisconnectedError
from .plan import NOTHING_SPENT
from .shards import Lease

if TYPE_CHECKING:
    from paceline.train.pacing.monitor import Converged
    from paceline.train.saving.checkpoint import Resume

# A worker waits this many seconds for a lost server, because the server's task restarts the server.
_PATIENCE_S = 120.0
_RETRY_S = 1.0
_LEAVE_TIMEOUT_S = 3.0
# Maximum fraction of the time spent on sending the optimizer's state to the server.
_MAX_KEEP_FRACTION, _MIN_KEEP_INTERVAL_S = 0.02, 1.0


class TrainingWorker(BatchSource):
    """Trains in this process as a worker of a parameter server.

    Parameters
    ----------
    name:
        Name of the worker in the schedule.
    server:
        ``host:port`` of the parameter server.
    key:
        The secret that the server requires; empty for none.
    patience_s:
        Seconds to wait for a server that does not respond.
    epochs:
        Number of epochs, which overrides that of the training code.
    """

    reads_epochs = False

    def __init__(
        self,
        name: str,
        server: str,
        key: bytes = b"",
        patience_s: float = _PATIENCE_S,
        epochs: int | None = None,
    ) -> None:
        super().__init__()
        self.name = name
        self._server = ServerConnection(name, server, key)
        self._patience_s = patience_s
        self._leases: deque[Lease] = deque()  # not done yet
        self._next: Lease | None = None  # requested in advance, to know whether an epoch ends
        self._over = self._ended = False
        self._epoch_batches = 1.0  # batches of an epoch, as the loader makes them
        self._schedulers: dict[str, FollowingScheduler] = {}
        self._momentum = FollowingMomentum({})
        self._kept = KeptParts({}, {})
        self._joined = False
        self._next_keep_s = float("-inf")
        self._loader: Any = None
        self._batch_size = 1  # batch size of the script's loader
        self._description: Description = {}
        self._until: Converged | None = None
        self._epochs = epochs
        self._began_s = self._update_s = self._idle_s = 0.0
        self._last_of_epoch = False
        self.spent = dict(NOTHING_SPENT)
        self.profiling = epochs is not None

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> TrainingWorker:
        """Return the worker that the environment describes."""
        key = environ.get(ENV_SERVER_KEY, "").encode()
        epochs = environ.get(ENV_EPOCHS)
        return cls(environ.get(ENV_WORKER, ""), environ[ENV_SERVER], key, epochs=int(epochs) if epochs else None)

    @property
    def waiting(self) -> bool:
        """Whether this process waits for the server, so that SIGTERM may end it immediately."""
        return self._server.waiting

    def open(self, loop: LoopState, session: SessionState) -> None:
        """Check the loader and the objects passed to ``checkpoint``."""
        super().open(loop, session)
        try:
            check_divisible(loop.loader, "training on several machines")
            self._loader, self._vector = loop.loader, StateVector(session.parts)
            self._batch_size = batch_size(loop.loader)
        except ValueError as error:
            refuse(error)

    def passes(self, resume: Resume | None) -> Iterator[Iterator[Any]]:
        """Yield the batches that the server leases to this worker."""
        yield self._batches()

    def _batches(self) -> Iterator[Any]:
        """Yield the leased batches, and send each batch's update of the state."""
        loop = self._loop
        self._server.state = self._vector.read()
        leased_loader = with_batch_sampler(self._loader, _LeasedBatches(self))
        self._until = loop.monitor.until if loop.monitor is not None and not self.profiling else None
        self._epoch_batches = loop.total / loop.epochs
        epochs = self._epochs or loop.epochs  # the maximum; ``until`` may lower it
        self._schedulers = following_schedulers(self._session.parts)
        self._momentum = FollowingMomentum(self._session.parts)
        self._kept = KeptParts(self._session.parts, self._schedulers)
        self._description = describe(self._loader, self._vector, self._until)
        self._join(epochs)
        self._began_s = time.monotonic()
        while not self._over:
            try:
                for batch in leased_loader:
                    if self._over:  # training has ended in the meantime
                        break
                    lease = self._leases[0]
                    self._last_of_epoch = self._is_last(lease)
                    self._show_progress(lease.epoch, last=self._last_of_epoch)
                    for scheduler in self._schedulers.values():
                        scheduler.begin_batch(lease.epoch, loop.done)
                    self._momentum.begin_batch(loop.done)
                    yield batch
                    self._momentum.end_batch()
                    self._finish_batch()
                    own = self._count_batches(self.spent["samples"])
                    for scheduler in self._schedulers.values():
                        scheduler.end_batch(lease.epoch, own, last=self._last_of_epoch)
                    if time.monotonic() >= self._next_keep_s:
                        self._keep()
            except DisconnectedError as error:
                log(f"lost the parameter server ({error}): reconnecting")
                lost_s = time.monotonic()
                self._join(epochs)
                self._idle_s += time.monotonic() - lost_s
        self._vector.write(self._server.state)
        self._show_progress(self._server.progress["epochs"] - 1, last=True)

    def _count_batches(self, samples: float) -> float:
        """Return the number of batches of the script's size for ``samples``.

        The workers' batches may have other sizes. A schedule for ``epochs * len(loader)`` batches fits nevertheless.
        """
        size = self._server.progress["size"]
        return self._epoch_batches * samples / size if size else 0.0

    def _show_progress(self, epoch: int, *, last: bool) -> None:
        """Set the progress of this worker and, in the loop, of all workers."""
        known = self._server.progress
        self.progress = (known["done"], max(known["total"], known["done"], 1))
        all_done = int(self._count_batches(known["samples"]))
        all_batches = max(round(self._epoch_batches * known["epochs"]), all_done, 1)
        self._loop.set_server_progress(epoch, known["epochs"], all_done, all_batches, last=last)

    def end(self, *, stopped: bool) -> None:
        """After an early stop in this worker, end training in all workers."""
        self._ended = True
        if stopped:
            self._stop_all_workers()
        self._show_progress(self._server.progress["epochs"] - 1, last=True)
        done = self._server.progress["done"]
        self.progress = (done, max(done, 1))  # a worker that joins near the end may receive no batch

    def _stop_all_workers(self) -> None:
        try:
            self._finish_batch()
            self._server.request({"kind": "stop"})
            self._leases.clear()  # the server has revoked all leases
            while not self._over:
                self._request_lease()
            self._vector.write(self._server.state)
        except DisconnectedError as error:
            log(f"lost the parameter server ({error}) during an early stop: only this worker stops")

    def close(self) -> None:
        """Leave the job. This worker's leases go to other workers.

        If the training code has left the loop by itself, by an exception or a ``break``, this counts as a failure, and
        the process does not succeed: its model is not the model of all workers.
        """
        self._momentum.end_batch()
        place = LoopExit()
        exits = sys.exc_info()[0] is SystemExit  # rejected, without a server, or terminated
        if run_by_paceline() and not (self._over or self._session.terminating or exits):
            atexit.register(_fail_unless_failed, os.getpid(), str(place), by_error=place.is_error)
        if self._server.peer is not None and not self._over:
            with contextlib.suppress(DisconnectedError):
                if self._ended or self._session.terminating:
                    self._server.peer.set_timeout(_LEAVE_TIMEOUT_S)
                    self._keep()
                    self._server.peer.send({"kind": "leave"})
                    self._server.peer.finish(_LEAVE_TIMEOUT_S)
                else:
                    self._server.peer.send({"kind": "fail"})
        self._server.close()

    def leased_indices(self) -> Iterator[Sequence[int]]:
        """Yield the indices of leased batches until no lease is available. Request one lease in advance."""
        while True:
            lease, self._next = self._next or self._request_lease(), None
            if lease is None:
                return
            self._leases.append(lease)
            self._next = self._request_lease()
            yield lease.indices  # this batch does not count if training has ended in the meantime

    def _is_last(self, lease: Lease) -> bool:
        """Return whether this worker has no lease after ``lease`` in the same epoch."""
        following = self._leases[1] if len(self._leases) > 1 else self._next
        return following is None or following.epoch != lease.epoch

    def _request_lease(self) -> Lease | None:
        while not self._over:
            self._end_if_terminating()
            requested_s = time.monotonic()
            message = self._server.request({"kind": "lease"})
            if message["kind"] == "lease":
                self._update_s += time.monotonic() - requested_s - message["waited_s"]
                self._idle_s += message["waited_s"]
                return Lease(message["number"], message["epoch"], message["indices"])
            if message["kind"] == "order":
                set_epoch(self._loader, message["epoch"])
                order = [sample_index(item) for batch in self._loader.batch_sampler for item in batch]
                self._server.request({"kind": "order"}, torch.tensor(order, dtype=torch.int64))
            elif message["kind"] == "over":
                self._over = True
            self._idle_s += time.monotonic() - requested_s
            if message["kind"] == "nothing" and self._leases:
                return None  # first train the batches that are already read
        return None

    def _finish_batch(self) -> None:
        """Send the update of the current batch, and continue from the newest state."""
        began_s = time.monotonic()
        lease = self._leases.popleft()
        update = self._vector.update_since(self._server.state)
        # As on one machine, the monitor uses the metric at the end of an epoch.
        monitored = self._until if self._last_of_epoch else None
        reports = self._session.newest_report(monitored.metric)[0] if monitored is not None else 0
        fields = {"number": lease.number, "reported": self._session.reported_values(), "reports": reports}
        self._server.send_update(fields, update)
        self._vector.write(self._server.state)
        now_s = time.monotonic()
        self._update_s += now_s - began_s
        self.spent = {
            "samples": self.spent["samples"] + len(lease.indices),
            "batches": self.spent["batches"] + 1,
            "compute_s": round(now_s - self._began_s - self._update_s - self._idle_s, 4),
            "update_s": round(self._update_s, 4),
        }

    def _keep(self) -> None:
        """Send the state of the optimizer and other objects to the server, for the process that continues this work."""
        if not self._kept or self._server.peer is None:
            return
        began_s = time.monotonic()
        try:
            packed = self._kept.pack(max_packed_bytes(self._vector.size))
        except ValueError as error:
            log(f"the parameter server does not keep the optimizer's state: {error}")
            self._kept = KeptParts({}, {})
            return
        self._server.peer.send({"kind": "keep"}, packed)  # the server does not respond
        now_s = time.monotonic()
        self._next_keep_s = now_s + max(_MIN_KEEP_INTERVAL_S, (now_s - began_s) / _MAX_KEEP_FRACTION)
        self._idle_s += now_s - began_s

    def _restore_kept(self) -> None:
        """Continue from the state that the server keeps for this worker's previous process, or for another worker."""
        if not self._kept:
            return
        received = self._server.request_kept()
        if received is not None and self._kept.restore(received):
            log(f"continuing with the state of {', '.join(self._kept.names)} that the parameter server has kept")

    def _end_if_terminating(self) -> None:
        if self._session.terminating:
            raise SystemExit(EXIT_TERMINATED)

    def _join(self, epochs: int) -> None:
        """Join the job; retry while the server does not respond."""
        self._leases.clear()
        self._next = None
        give_up_s = time.monotonic() + self._patience_s
        while True:
            self._end_if_terminating()
            try:
                fields: dict[str, Any] = {"epochs": epochs, "size": self._vector.size, "summed": self._vector.summed}
                fields["until"] = self._until.to_dict() if self._until is not None else None
                fields["batch_size"] = self._batch_size
                fields["description"] = self._description
                fields["dtype"] = str(self._vector.dtype).removeprefix("torch.")
                client = self._server.join(fields, self._vector)
                self._vector.write(self._server.state)
                rng.reseed(client, 0)  # with equal seeds, all workers would draw the same dropout masks
                if not self._joined:  # after a reconnection, the objects of this process are newer
                    self._restore_kept()
                self._joined = True
                return
            except DisconnectedError as error:
                if time.monotonic() > give_up_s:
                    host, port = self._server.address
                    log(f"no parameter server at {host}:{port} for {self._patience_s:.0f} s: {error}")
                    raise SystemExit(EXIT_NO_SERVER) from None
                with self._server.interruptible():
                    time.sleep(_RETRY_S)


def _fail_unless_failed(pid: int, place: str, *, by_error: bool) -> None:
    """End this process with an error, unless an exception already ends it. A retry cannot undo a ``break``."""
    if os.getpid() != pid or hasattr(sys, "last_value"):
        return
    code, cause = (1, "an exception") if by_error else (EXIT_REJECTED, "a break")
    log(
        f"the training code left the track() loop before the end of training, by {cause} at {place}, so this worker's "
        f"model is not the trained one: exit code {code}. Call stop_early() to end training in all workers"
    )
    end_process(code)


def sample_index(item: object) -> int:
    """Return an item of a sampler as an integer, for the wire; samplers may yield those of numpy or torch."""
    try:
        return index(item)  # type: ignore[arg-type]
    except TypeError:
        refuse(bad_value("sampler", item, "whole numbers as indices, for training on several machines"))


def batch_size(loader: Any) -> int:
    """Return a loader's ``batch_size``; without this attribute, the size of the first batch of its sampler."""
    size = getattr(loader.batch_sampler, "batch_size", None)
    if isinstance(size, int):
        return size
    first = list(next(iter(loader.batch_sampler), ()))
    if not first:
        raise bad_value("batch_sampler", "no samples in the first batch", "batches with at least one sample")
    return len(first)


class _LeasedBatches:
    """A batch sampler that yields the batches leased by the server."""

    def __init__(self, worker: TrainingWorker) -> None:
        self._worker = worker

    def __iter__(self) -> Iterator[Sequence[int]]:
        return self._worker.leased_indices()
