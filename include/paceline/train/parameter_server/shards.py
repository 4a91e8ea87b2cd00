"""Assigns the samples of each epoch to workers and leases them batch by batch. Used by ``_training``.

No clock and no I/O.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# A worker with this many failures is excluded from the rest of the job, as in Deep-Edge.
MAX_FAILURES = 3
# Weight of the last epoch in a worker's new share.
_NEWEST_WEIGHT = 0.5


@dataclass(frozen=True)
class SampleShare:
    """A worker's share in a schedule: the number of samples and the batch size.

    Without a ``batch_size``, the batch size of the worker's loader applies.
    """

    samples: float
    batch_size: int | None = None


@dataclass(frozen=True)
class Lease:
    """A batch that a worker has to train and report as done."""

    number: int
    epoch: int
    indices: Sequence[int]


@dataclass
class _Epoch:
    number: int
    size: int
    unleased: dict[str, deque[int]]  # by worker; under "" while there are no workers
    leased: dict[int, tuple[str, list[int]]] = field(default_factory=dict)
    done: dict[str, int] = field(default_factory=dict)
    steady: set[str] = field(default_factory=set)  # workers that have been present since the start of the epoch

    @property
    def finished(self) -> bool:
        return not self.leased and not any(self.unleased.values())


class Shards:
    """The samples of a training job. Each sample counts once per epoch, even if workers join, leave or hang.

    A worker's shard of an epoch is proportional to its share in the schedule. A worker that completes its shard takes
    over samples from the worker with the most remaining samples, so all batches are full except the last batch of an
    epoch, batches of fixed shards, and revoked batches. For the next epoch, each share moves toward the fraction of
    samples that the worker has trained on, so a straggler's shard shrinks. If a worker is lost, its leases are revoked
    and its shard goes to other workers immediately.

    An epoch starts as soon as all samples of the previous epoch are leased, even if they are not done.

    Parameters
    ----------
    shares:
        Each worker's share in the schedule. Other workers may not join.
    epochs:
        Number of passes over all samples.
    fixed:
        Whether each worker trains only its own shard of every epoch, as in Deep-Edge. The shard of a lost worker still
        goes to other workers.

    Examples
    --------
    >>> shards = Shards({"a": SampleShare(2, batch_size=2), "b": SampleShare(1, batch_size=2)}, epochs=1)
    >>> shards.join("a"), shards.join("b")
    (None, None)
    >>> shards.start_epoch([9, 8, 7, 6, 5, 4])
    >>> shards.lease("a").indices, shards.lease("b").indices
    ([9, 8], [5, 4])
    >>> shards.leave("b"), shards.lease("a").indices
    (2, [7, 6])
    """

    def __init__(self, shares: Mapping[str, SampleShare], epochs: int, *, fixed: bool = False) -> None:
        self.epochs = epochs
        self._fixed = fixed
        self.failures = dict.fromkeys(shares, 0)
        self.done = dict.fromkeys(shares, 0)  # batches done, by worker
        self._batch_size = {name: share.batch_size or 0 for name, share in shares.items()}
        self._weight = {name: share.samples for name, share in shares.items()}
        self._present: list[str] = []
        self._open: list[_Epoch] = []  # oldest first
        self._newest: _Epoch | None = None
        self._epochs_started = 0
        self._size = 0  # number of samples in the newest epoch
        self._done_when_stopped: int | None = None
        self._leases = 0

    @property
    def present(self) -> list[str]:
        """The workers that are present, in the order in which they joined."""
        return list(self._present)

    @property
    def all_leased(self) -> bool:
        """Whether every sample of the epochs that have started is leased or done."""
        return not any(any(epoch.unleased.values()) for epoch in self._open)

    @property
    def needs_order(self) -> bool:
        """Whether the next epoch can start as soon as the order of its samples is known."""
        if self._epochs_started >= self.epochs or self._done_when_stopped is not None:
            return False
        return self.all_leased and len(self._open) < 2

    @property
    def ended(self) -> bool:
        """Whether every sample of every epoch is done."""
        return self._done_when_stopped is not None or (self._epochs_started == self.epochs and not self._open)

    def is_scheduled(self, worker: str) -> bool:
        """Return whether the schedule contains the worker."""
        return worker in self.failures

    def is_excluded(self, worker: str) -> bool:
        """Return whether a worker is excluded after too many failures."""
        return self.failures[worker] >= MAX_FAILURES

    def join(self, worker: str, batch_size: int | None = None) -> None:
        """Add a worker and assign it a shard of the remaining samples.

        ``batch_size`` is that of the worker's loader. It applies if the schedule has no batch size for the worker.
        """
        self._batch_size[worker] = self._batch_size[worker] or batch_size or 1
        self._present.append(worker)
        self._divide_samples()

    def leave(self, worker: str, *, failed: bool = True) -> int:
        """Remove a worker; return the number of its leased samples, which go to other workers."""
        self._present.remove(worker)
        if failed:
            self.failures[worker] += 1
        lost = 0
        for epoch in self._open:
            epoch.steady.discard(worker)
            numbers = [number for number, (holder, _) in epoch.leased.items() if holder == worker]
            for number in numbers:
                lost += self._return_lease(epoch, number)
        self._divide_samples()
        return lost

    def revoke_lease(self, number: int) -> None:
        """Return the samples of an overdue batch to its worker's shard. The batch no longer counts."""
        for epoch in self._open:
            if number in epoch.leased:
                self._return_lease(epoch, number)

    def start_epoch(self, order: Sequence[int]) -> None:
        """Start the next epoch with the samples in this order, unless all epochs have started."""
        if self._epochs_started >= self.epochs or self._done_when_stopped is not None:
            return
        if self._newest is not None and not self._fixed:
            self._update_weights(self._newest)
        self._size = len(order)
        epoch = self._newest = _Epoch(self._epochs_started, len(order), {"": deque(order)}, steady=set(self._present))
        self._epochs_started += 1
        if order:
            self._open.append(epoch)
        self._divide_samples()

    def lease(self, worker: str) -> Lease | None:
        """Return the next batch for a worker; ``None`` if there is nothing to lease now."""
        for epoch in self._open:
            indices = self._next_indices(epoch, worker)
            if indices:
                self._leases += 1
                epoch.leased[self._leases] = (worker, indices)
                return Lease(self._leases, epoch.number, indices)
        return None

    def finish(self, worker: str, number: int) -> bool:
        """Mark a batch as done; return false if its lease was revoked."""
        for epoch in self._open:
            if epoch.leased.get(number, ("",))[0] == worker:
                _, indices = epoch.leased.pop(number)
                epoch.done[worker] = epoch.done.get(worker, 0) + len(indices)
                self.done[worker] += 1
                self._drop_finished()
                return True
        return False

    def set_epochs(self, epochs: int) -> None:
        """Set the number of epochs, but complete all epochs that have started."""
        self.epochs = max(epochs, self._epochs_started)

    def stop(self) -> None:
        """End training, and ignore the results of leased batches."""
        self._done_when_stopped = self.samples_done
        self._open = []

    def leased_to(self, worker: str) -> int:
        """Return the number of batches that are leased to a worker."""
        return sum(holder == worker for epoch in self._open for holder, _ in epoch.leased.values())

    def forecast_batches(self, worker: str) -> int:
        """Return the forecast number of batches that a worker trains in total."""
        size = self._batch_size[worker] or 1
        unleased = sum(math.ceil(len(epoch.unleased.get(worker, ())) / size) for epoch in self._open)
        known = self.done[worker] + self.leased_to(worker) + unleased
        if worker not in self._present or self.ended:
            return known
        share = self._weight[worker] / sum(self._weight[name] for name in self._present)
        epochs = self.epochs - self._epochs_started
        if self._fixed:  # the last batch of each shard may be smaller
            return known + epochs * math.ceil(share * self._size / size)
        return known + math.ceil(epochs * share * math.ceil(self._size / size))

    @property
    def samples_done(self) -> int:
        """Number of samples done in all epochs; each sample counts once per epoch."""
        if self._done_when_stopped is not None:
            return self._done_when_stopped
        finished = self._epochs_started - len(self._open)
        return finished * self._size + sum(sum(epoch.done.values()) for epoch in self._open)

    @property
    def size(self) -> int:
        """Number of samples of an epoch. 0 before the first epoch."""
        return self._size

    @property
    def epochs_started(self) -> int:
        """Number of epochs that have started, which is the number of the next epoch."""
        return self._epochs_started

    @property
    def epochs_done(self) -> float:
        """Number of epochs done, including the fraction of an unfinished epoch."""
        return self.samples_done / self._size if self._size else 0.0

    @property
    def samples(self) -> int:
        """Number of samples of all epochs; each sample counts once per epoch. 0 before the first epoch."""
        return self.epochs * self._size if self._done_when_stopped is None else self._done_when_stopped

    def state(self) -> dict[str, Any]:
        """Return the state for ``load_state`` as JSON values. Leased batches count as not done."""
        return {
            "begun": self._epochs_started,
            "size": self._size,
            "stopped": self._done_when_stopped,
            "failures": dict(self.failures),
            "done": dict(self.done),
            "weight": dict(self._weight),
            "open": [
                {"number": epoch.number, "size": epoch.size, "left": _undone_indices(epoch), "done": dict(epoch.done)}
                for epoch in self._open
            ],
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the result of ``state``, in which workers may differ from the schedule. None are present then."""
        self._epochs_started, self._size, self._done_when_stopped = state["begun"], state["size"], state["stopped"]
        self.failures = {name: state["failures"].get(name, 0) for name in self.failures}
        self.done = {name: state["done"].get(name, 0) for name in self.done}
        if state["weight"].keys() == self._weight.keys():  # the shares of another schedule may have another unit
            self._weight = dict(state["weight"])
        self._present = []
        self._open = [
            _Epoch(saved["number"], saved["size"], {"": deque(saved["left"])}, done=dict(saved["done"]))
            for saved in state["open"]
        ]

    def _return_lease(self, epoch: _Epoch, number: int) -> int:
        holder, indices = epoch.leased.pop(number)
        epoch.unleased.setdefault(holder, deque()).extendleft(reversed(indices))
        return len(indices)

    def _next_indices(self, epoch: _Epoch, worker: str) -> list[int]:
        size = self._batch_size[worker]
        taken: list[int] = []
        own = epoch.unleased.get(worker)
        while own and len(taken) < size:
            taken.append(own.popleft())
        # Fill the last batch of a shard with samples of other shards: a batch of one or two samples would change the
        # model as much as a full batch and could degrade it near the end. Only the last batch of an epoch may be
        # smaller.
        while len(taken) < size and not self._fixed:
            slowest = max(epoch.unleased, key=lambda name: len(epoch.unleased[name]), default=None)
            if slowest is None or not epoch.unleased[slowest]:
                break
            remaining = epoch.unleased[slowest]
            taken.extend(remaining.pop() for _ in range(min(size - len(taken), len(remaining))))
        return taken

    def _divide_samples(self) -> None:
        """Divide the remaining samples of each epoch among the workers; each worker first keeps its own samples."""
        if not self._present:
            return
        weights = sum(self._weight[name] for name in self._present)
        for epoch in self._open:
            unleased = sum(map(len, epoch.unleased.values()))
            ends = [
                round(unleased * sum(self._weight[name] for name in self._present[:k]) / weights)
                for k in range(len(self._present) + 1)
            ]
            wanted = {name: ends[k + 1] - ends[k] for k, name in enumerate(self._present)}
            divided: dict[str, deque[int]] = {name: deque() for name in self._present}
            surplus: deque[int] = deque()
            for name, indices in epoch.unleased.items():
                keep = min(wanted.get(name, 0), len(indices))
                for position, index in enumerate(indices):
                    (divided[name] if position < keep else surplus).append(index)
            for name in self._present:
                while len(divided[name]) < wanted[name]:
                    divided[name].append(surplus.popleft())
            epoch.unleased = divided

    def _update_weights(self, epoch: _Epoch) -> None:
        """Move weights toward the numbers of trained samples, for workers that were present throughout ``epoch``."""
        steady = [name for name in epoch.steady if epoch.done.get(name)]
        weights, done = sum(self._weight[name] for name in steady), sum(epoch.done[name] for name in steady)
        for name in steady:
            self._weight[name] += _NEWEST_WEIGHT * (weights * epoch.done[name] / done - self._weight[name])

    def _drop_finished(self) -> None:
        self._open = [epoch for epoch in self._open if not epoch.finished]


def _undone_indices(epoch: _Epoch) -> list[int]:
    leased = (index for _, indices in epoch.leased.values() for index in indices)
    return [*leased, *(index for indices in epoch.unleased.values() for index in indices)]
