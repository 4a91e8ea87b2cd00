"""The trained state of a job on the parameter server: its updates, its readers, and the processes that hold it.

Used by ``_training`` to compare and update the state, and by ``_server`` to send it and to add and remove holders.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import torch

from paceline.train._values import log

from ._holder import Holder
from ._kept import allocate_packed
from ._limits import MAX_PROCESSES, count, max_state_size
from ._vector import apply_update
from .peer import DisconnectedError


class SharedState:
    """A vector of numbers, divided into one equal range per process, which the threads of a parameter server share.

    Workers connect to each process, so updates and states travel over several network links in parallel. The server has
    the first range. To read the whole vector, the server fetches the other ranges.

    Parameters
    ----------
    lock:
        The lock of the training job. ``SharedTraining`` holds it in all its calls, so that no other thread changes the
        state or its layout in between.
    """

    def __init__(self, lock: threading.Condition) -> None:
        self._lock = lock
        self._vector: torch.Tensor | None = None
        self.summed = 0
        """Length of the first part of the vector, whose changes add up; see ``StateVector``."""
        self._holders: list[Holder] = []
        # The first version is random, so that changes sent for the layout of a previous server are rejected.
        self.version = int.from_bytes(os.urandom(4), "big") + 1
        """Version of the layout of the ranges; messages with an older version are rejected."""
        self.loss: str | None = None
        """Why the job has to resume from the last checkpoint; ``None`` while the state is complete."""
        self._updates = 0  # applied to the state
        self._fetched: dict[str, int] = {}  # by worker: number of updates in the state that it fetched

    @property
    def is_set(self) -> bool:
        """Whether there is an initial state."""
        return self._vector is not None

    @property
    def processes(self) -> int:
        """Number of processes that hold a range."""
        return 1 + len(self._holders)

    def set_initial_state(self, state: torch.Tensor, summed: int) -> None:
        """Use a worker's state as the initial state, unless another worker's state arrived first.

        Changes to its first ``summed`` numbers add up.
        """
        with self._lock:
            if self._vector is None:
                self._vector, self.summed = state, summed
                self._distribute()

    def memory_excess(self, worker: str, size: int, dtype: torch.dtype) -> str | None:
        """Return why a worker's model cannot become the initial state; ``None`` if it can, or if there is a state."""
        limit = max_state_size(str(dtype).removeprefix("torch."))
        if self.is_set or size <= limit:
            return None
        return f"the model of {worker} has {size} numbers, the memory of the parameter server allows {limit}"

    def difference(self, worker: str, size: int, summed: int, dtype: torch.dtype) -> str | None:
        """Return how a worker's model differs from the state; ``None`` if it does not, or if there is no state."""
        if not self.is_set:
            return None
        others = (self._size, self.summed, self._first_range().dtype)
        if size != others[0]:
            return f"the model of {worker} has {size} numbers, other workers {others[0]}: run the same script"
        if summed != others[1]:
            buffers = f"{size - summed} numbers in floating-point buffers, other workers {size - others[1]}"
            return f"the model of {worker} has {buffers}: run the same script"
        if dtype != others[2]:
            return f"the model of {worker} has numbers of {dtype}, other workers {others[2]}: run the same script"
        return None

    # --- updates --------------------------------------------------------------------------------------------------

    def note_fetch(self, worker: str) -> None:
        """Note that a worker fetches the newest state."""
        self._fetched[worker] = self._updates

    def fits(self, version: int, update: torch.Tensor) -> bool:
        """Return whether an update belongs to the current layout. Raises ``ValueError`` if its length is wrong."""
        if version != self.version:
            return False
        own_range = len(self._first_range())
        if len(update) != own_range:
            raise ValueError(f"change: got {len(update)} numbers, expected {own_range}")
        return True

    def apply(self, worker: str, number: int, update: torch.Tensor) -> bool:
        """Apply the update of a worker's batch, after which the worker fetches the state; return false at a loss."""
        try:
            staleness = self._updates - self._fetched[worker]
            apply_update(self._first_range(), update, self._summed_from(0), staleness)
            for holder in self._holders:
                holder.commit(worker, number, staleness)
        except Exception as error:  # the batch already counts as done, and some processes may have its update
            self._lose(error)
            return False
        self._updates += 1
        self.note_fetch(worker)
        return True

    def _lose(self, error: Exception) -> None:
        self.loss = f"a shard of the state is lost: {error}"

    # --- reading --------------------------------------------------------------------------------------------------

    def snapshot(self) -> torch.Tensor:
        """Return the newest state."""
        with self._lock:
            return self._fetch_all().clone()

    def own_range(self) -> tuple[dict[str, Any], torch.Tensor]:
        """Return the current layout and a copy of the server's range."""
        with self._lock:
            return self._layout(), self._first_range().clone()

    def complete_snapshot(self) -> torch.Tensor | None:
        """Return the newest state for a checkpoint; ``None`` if there is no complete state."""
        if not self.is_set or self.loss:
            return None
        try:
            return self.snapshot()
        except DisconnectedError as error:
            self._lose(error)
            return None

    def allocate(self, length: int) -> torch.Tensor:
        """Return memory for a worker's update of ``length`` numbers; the update may belong to an earlier layout."""
        with self._lock:
            if length > self._size:
                raise ValueError(f"state: got {length} numbers, expected at most {self._size}")
            return torch.empty(length, dtype=self._first_range().dtype)

    def allocate_kept(self, length: int) -> torch.Tensor:
        """Return memory for the packed state of a worker's optimizer, ``length`` bytes."""
        return allocate_packed(length, self._size)

    @property
    def _size(self) -> int:
        assert self._vector is not None
        return len(self._vector)

    def _first_range(self) -> torch.Tensor:
        """Return the server's range of the vector. Changes to the result change the vector."""
        assert self._vector is not None
        return self._vector[: self._start(1)]

    def _fetch_all(self) -> torch.Tensor:
        """Fetch the newest ranges from all processes and return the whole vector."""
        assert self._vector is not None
        for index, holder in enumerate(self._holders, start=1):
            holder.fetch(self._vector[self._start(index) : self._start(index + 1)])
        return self._vector

    def _layout(self) -> dict[str, Any]:
        """Return the address and range of each process, as a message for workers."""
        places = range(1, self.processes)
        others = [
            [*holder.address, self._start(index), self._start(index + 1)]
            for index, holder in zip(places, self._holders, strict=True)
        ]
        return {"version": self.version, "own": self._start(1), "others": others}

    # --- holders: processes that hold a range ---------------------------------------------------------------------

    def add_holder(self, holder: Holder) -> None:
        """Add a process that holds a range of the state."""
        count("processes", self.processes + 1, MAX_PROCESSES)
        self._change_layout(lambda: self._join(holder), f"{holder.name} holds a shard of the state")

    def remove_holder(self, name: str) -> None:
        """Fetch the range of a process and remove the process."""
        self._change_layout(lambda: self._leave(name), f"{name} has returned its shard of the state")

    def check_holders(self) -> None:
        """Check all holders after a worker could not reach one of them."""
        self._change_layout(lambda: self.is_set and self._fetch_all(), "")

    def collect(self) -> None:
        """Fetch the whole state after training has ended, and release all holders."""
        self._change_layout(self._end, "")

    def _change_layout(self, change: Callable[[], object], event: str) -> None:
        began_s = time.monotonic()
        with self._lock:
            try:
                changed = change() is not False
            except DisconnectedError as error:
                self._lose(error)
                return
            duration_s, processes = time.monotonic() - began_s, self.processes
        if event and changed:
            log(f"{event}, which {processes} processes now share ({1000 * duration_s:.0f} ms)")

    def _join(self, holder: Holder) -> None:
        """Add a holder, and redistribute the ranges."""
        if self._vector is not None:
            self._fetch_all()
        self._holders.append(holder)
        self._distribute()

    def _leave(self, name: str) -> bool:
        """Remove a holder; return whether it held a range."""
        leaving = [holder for holder in self._holders if holder.name == name]
        if not leaving:
            return False
        if self._vector is not None:
            self._fetch_all()
        self._holders = [holder for holder in self._holders if holder.name != name]
        self._distribute()
        for holder in leaving:
            self._release(holder)
        return True

    def _end(self) -> None:
        """Fetch the whole vector and end all holders."""
        if self._vector is not None:
            self._fetch_all()
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
        return round(self._size * index / self.processes) if self._vector is not None else 0
