"""Which worker trains on which samples: its part of each epoch, lent out batch by batch. Kept by ``training``.

There is no clock and no I/O in here.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# Who fails so often is left out for the rest of the training, as in Deep-Edge.
STRIKES = 3
# How fast a worker's part follows what it did in the last epoch.
_NEWEST = 0.5


@dataclass(frozen=True)
class SampleShare:
    """What a schedule gives to a worker: so many of the samples, and so many of them at a time.

    Without a ``batch_size`` it is that of the worker's own loader.
    """

    samples: float
    batch_size: int | None = None


@dataclass(frozen=True)
class Lease:
    """A batch that a worker is to do, and then to give back as done."""

    number: int
    epoch: int
    indices: Sequence[int]


@dataclass
class _Epoch:
    number: int
    size: int
    left: dict[str, deque[int]]  # not lent out; under "" while nobody is there to have them
    lent: dict[int, tuple[str, list[int]]] = field(default_factory=dict)
    done: dict[str, int] = field(default_factory=dict)
    steady: set[str] = field(default_factory=set)  # who has been there from its beginning

    @property
    def closed(self) -> bool:
        return not self.lent and not any(self.left.values())


class Shards:
    """The samples of a training, each to be done once in every epoch, whatever becomes of the workers.

    A worker's part of an epoch is in proportion to what the schedule gave it. Whoever is through with its own part
    takes over from whoever has most left, so that batches are full but for the epoch's last, unless parts are fixed or
    a batch was handed back; in the next epoch the parts follow what each has done, so that a straggler's becomes
    smaller. What a worker was lent when it is lost goes back, and its part goes to the others at once.

    An epoch begins as soon as the one before it is lent out; it need not be done.

    Parameters
    ----------
    parts:
        Worker to what the schedule gives it. Others may not join.
    epochs:
        How often all samples are gone through.
    fixed:
        Each does its own part of every epoch and no more, as in Deep-Edge; only what belonged to somebody who is lost
        goes to the others.

    Examples
    --------
    >>> shards = Shards({"a": SampleShare(2, batch_size=2), "b": SampleShare(1, batch_size=2)}, epochs=1)
    >>> shards.join("a"), shards.join("b")
    (None, None)
    >>> shards.begin_epoch([9, 8, 7, 6, 5, 4])
    >>> shards.lease("a").indices, shards.lease("b").indices
    ([9, 8], [5, 4])
    >>> shards.lose("b"), shards.lease("a").indices
    (2, [7, 6])
    """

    def __init__(self, parts: Mapping[str, SampleShare], epochs: int, *, fixed: bool = False) -> None:
        self.epochs = epochs
        self._fixed = fixed
        self.strikes = dict.fromkeys(parts, 0)
        self.done = dict.fromkeys(parts, 0)  # batches of each
        self._batch_size = {name: part.batch_size or 0 for name, part in parts.items()}
        self._weight = {name: part.samples for name, part in parts.items()}
        self._present: list[str] = []
        self._open: list[_Epoch] = []  # oldest first
        self._newest: _Epoch | None = None
        self._begun = 0
        self._size = 0  # of the newest epoch
        self._done_when_stopped: int | None = None
        self._leases = 0

    @property
    def present(self) -> list[str]:
        """Who trains, in the order of joining."""
        return list(self._present)

    @property
    def wants_order(self) -> bool:
        """Whether the next epoch can begin, and the order of its samples is wanted."""
        if self._begun >= self.epochs or self._done_when_stopped is not None:
            return False
        lent_out = not any(any(epoch.left.values()) for epoch in self._open)
        return lent_out and len(self._open) < 2

    @property
    def ended(self) -> bool:
        """Whether every sample of every epoch is done."""
        return self._done_when_stopped is not None or (self._begun == self.epochs and not self._open)

    def knows(self, worker: str) -> bool:
        """Whether the schedule has given that worker anything."""
        return worker in self.strikes

    def excluded(self, worker: str) -> bool:
        """Whether a worker has failed too often."""
        return self.strikes[worker] >= STRIKES

    def join(self, worker: str, batch_size: int | None = None) -> None:
        """A worker has come, or has come back: it gets its part of what is left.

        ``batch_size`` is what its loader has; it counts where the schedule gives none.
        """
        self._batch_size[worker] = self._batch_size[worker] or batch_size or 1
        self._present.append(worker)
        self._divide()

    def lose(self, worker: str, *, strike: bool = True) -> int:
        """A worker has gone; returns how many samples it had been lent, which the others do now."""
        self._present.remove(worker)
        if strike:
            self.strikes[worker] += 1
        lost = 0
        for epoch in self._open:
            epoch.steady.discard(worker)
            mine = [number for number, (holder, _) in epoch.lent.items() if holder == worker]
            for number in mine:
                lost += self._put_back(epoch, number)
        self._divide()
        return lost

    def take_back(self, number: int) -> None:
        """A batch was lent for too long: somebody else is to do it. Who comes with it later comes too late."""
        for epoch in self._open:
            if number in epoch.lent:
                self._put_back(epoch, number)

    def begin_epoch(self, order: Sequence[int]) -> None:
        """Begin the next epoch with the samples in that order, unless none is wanted any more."""
        if self._begun >= self.epochs or self._done_when_stopped is not None:
            return
        if self._newest is not None and not self._fixed:
            self._follow(self._newest)
        self._size = len(order)
        epoch = self._newest = _Epoch(self._begun, len(order), {"": deque(order)}, steady=set(self._present))
        self._begun += 1
        if order:
            self._open.append(epoch)
        self._divide()

    def lease(self, worker: str) -> Lease | None:
        """The next batch for a worker; ``None`` if there is nothing to lend now."""
        for epoch in self._open:
            indices = self._take(epoch, worker)
            if indices:
                self._leases += 1
                epoch.lent[self._leases] = (worker, indices)
                return Lease(self._leases, epoch.number, indices)
        return None

    def finish(self, worker: str, number: int) -> bool:
        """A worker has done a batch; returns whether it counts: not if it was taken back meanwhile."""
        for epoch in self._open:
            if epoch.lent.get(number, ("",))[0] == worker:
                _, indices = epoch.lent.pop(number)
                epoch.done[worker] = epoch.done.get(worker, 0) + len(indices)
                self.done[worker] += 1
                self._close()
                return True
        return False

    def set_epochs(self, epochs: int) -> None:
        """Let there be so many epochs from now on; those that have begun are done in any case."""
        self.epochs = max(epochs, self._begun)

    def stop(self) -> None:
        """Nothing more is to be done; what is lent out does not count any more."""
        self._done_when_stopped = self.samples_done
        self._open = []

    def holds(self, worker: str) -> int:
        """How many batches are lent to a worker."""
        return sum(holder == worker for epoch in self._open for holder, _ in epoch.lent.values())

    def total(self, worker: str) -> int:
        """How many batches a worker will have done in the end, as things stand."""
        size = self._batch_size[worker] or 1
        left = sum(math.ceil(len(epoch.left.get(worker, ())) / size) for epoch in self._open)
        known = self.done[worker] + self.holds(worker) + left
        if worker not in self._present or self.ended:
            return known
        share = self._weight[worker] / sum(self._weight[name] for name in self._present)
        epochs = self.epochs - self._begun
        if self._fixed:  # each part ends with a batch of its own
            return known + epochs * math.ceil(share * self._size / size)
        return known + math.ceil(epochs * share * math.ceil(self._size / size))

    @property
    def samples_done(self) -> int:
        """Samples done in all epochs, each time counted."""
        if self._done_when_stopped is not None:
            return self._done_when_stopped
        closed = self._begun - len(self._open)
        return closed * self._size + sum(sum(epoch.done.values()) for epoch in self._open)

    @property
    def epochs_done(self) -> float:
        """How often all samples have been gone through; a fraction in the middle of an epoch."""
        return self.samples_done / self._size if self._size else 0.0

    @property
    def samples(self) -> int:
        """Samples to do in all epochs, each time counted; 0 while no epoch has begun."""
        return self.epochs * self._size if self._done_when_stopped is None else self._done_when_stopped

    def state(self) -> dict[str, Any]:
        """What ``load_state`` needs, in numbers and strings: batches that are lent out count as not done."""
        return {
            "begun": self._begun,
            "size": self._size,
            "stopped": self._done_when_stopped,
            "strikes": dict(self.strikes),
            "done": dict(self.done),
            "weight": dict(self._weight),
            "open": [
                {"number": epoch.number, "size": epoch.size, "left": _all_left(epoch), "done": dict(epoch.done)}
                for epoch in self._open
            ],
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state`` was taken, with nobody there yet."""
        self._begun, self._size, self._done_when_stopped = state["begun"], state["size"], state["stopped"]
        self.strikes, self.done, self._weight = dict(state["strikes"]), dict(state["done"]), dict(state["weight"])
        self._present = []
        self._open = [
            _Epoch(one["number"], one["size"], {"": deque(one["left"])}, done=dict(one["done"]))
            for one in state["open"]
        ]

    def _put_back(self, epoch: _Epoch, number: int) -> int:
        holder, indices = epoch.lent.pop(number)
        epoch.left.setdefault(holder, deque()).extendleft(reversed(indices))
        return len(indices)

    def _take(self, epoch: _Epoch, worker: str) -> list[int]:
        size = self._batch_size[worker]
        taken: list[int] = []
        own = epoch.left.get(worker)
        while own and len(taken) < size:
            taken.append(own.popleft())
        # What ends a part is filled up from others' parts: a batch of one or two samples counts as much as a full one,
        # and so shortly before the end it can spoil what was learned. One such batch is left, as in any epoch.
        while len(taken) < size and not self._fixed:
            slowest = max(epoch.left, key=lambda name: len(epoch.left[name]), default=None)
            if slowest is None or not epoch.left[slowest]:
                break
            theirs = epoch.left[slowest]
            taken.extend(theirs.pop() for _ in range(min(size - len(taken), len(theirs))))
        return taken

    def _divide(self) -> None:
        """Divide what is left of each epoch among those who are there; whoever has some of its own keeps it first."""
        if not self._present:
            return
        whole = sum(self._weight[name] for name in self._present)
        for epoch in self._open:
            left = sum(map(len, epoch.left.values()))
            ends = [
                round(left * sum(self._weight[name] for name in self._present[:k]) / whole)
                for k in range(len(self._present) + 1)
            ]
            wanted = {name: ends[k + 1] - ends[k] for k, name in enumerate(self._present)}
            divided: dict[str, deque[int]] = {name: deque() for name in self._present}
            over: deque[int] = deque()
            for name, indices in epoch.left.items():
                keep = min(wanted.get(name, 0), len(indices))
                for position, index in enumerate(indices):
                    (divided[name] if position < keep else over).append(index)
            for name in self._present:
                while len(divided[name]) < wanted[name]:
                    divided[name].append(over.popleft())
            epoch.left = divided

    def _follow(self, epoch: _Epoch) -> None:
        """Let the parts follow what was done in an epoch, of those who were there all the time."""
        steady = [name for name in epoch.steady if epoch.done.get(name)]
        weights, done = sum(self._weight[name] for name in steady), sum(epoch.done[name] for name in steady)
        for name in steady:
            self._weight[name] += _NEWEST * (weights * epoch.done[name] / done - self._weight[name])

    def _close(self) -> None:
        self._open = [epoch for epoch in self._open if not epoch.closed]


def _all_left(epoch: _Epoch) -> list[int]:
    lent = (index for _, indices in epoch.lent.values() for index in indices)
    return [*lent, *(index for indices in epoch.left.values() for index in indices)]
