"""The first process of a data-parallel training: starts the others, lets them join and leave between two batches.

Made by ``data_parallel``, driven by ``_loop``.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import _data
from ._follower import ENV_DEVICE, ENV_SOCKET
from ._part import Division, check_divisible, loader_over
from ._thread_choice import in_whole
from ._threads import one_on_cpu
from ._values import bad_value, say
from ._wire import BatchShare, Wire
from .job import ENV_CHECKPOINT, ENV_OUTPUT

if TYPE_CHECKING:
    from ._checkpoint import Position, Resume, Stateful
    from ._replica import Replica

# The first to be ready waits so long for the others that were started with it: joining stops the training each time.
_GATHER_S = 5.0
_LEAVE_S = 10.0


class Lead:
    """The processes of a training, seen from the first of them.

    Parameters
    ----------
    replica:
        The model.
    most:
        No more devices than so many.
    """

    def __init__(self, replica: Replica, most: int | None) -> None:
        self._replica = replica
        self._most = most
        self._number = 0
        self._parts: dict[str, Stateful] = {}
        self._loader: Any = None
        self._mine: Any = None  # a loader of this process's part of the batches
        self._division: Division | None = None  # of the batches, while there is more than one process
        self._active: list[_Process] = []
        self._starting: list[_Process] = []
        self._left: list[_Process] = []
        self._wanted, self._failed = 1, 0
        self._ready_since_s: float | None = None
        self._groups = 0
        self._folder: Path | None = None

    @property
    def world(self) -> int:
        """How many processes train, this one included."""
        return 1 + len(self._active)

    def begin(self, number: int, loader: Any, parts: dict[str, Stateful]) -> None:
        """A loop begins, the script's ``number``-th; who joins it gets the state of ``parts``."""
        check_divisible(loader)
        if not parts:
            accepted = "checkpoint(model=model, optimizer=optimizer) before the loop, for data_parallel()"
            raise bad_value("checkpoint", "nothing", accepted)
        one_on_cpu()
        self._number, self._parts = number, parts
        self._loader = self._mine = loader

    def devices(self, share: float | None) -> int:
        """How many whole devices a share is; without one, every GPU."""
        import torch

        gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
        wanted = in_whole(share) if share is not None else max(gpus, 1)
        return min(wanted, gpus or wanted, self._most or wanted)

    def follow(self, wanted: int) -> bool:
        """Start who is missing; return whether the group is to be formed anew now."""
        if wanted != self._wanted:
            self._wanted, self._failed = wanted, 0
        self._hear()
        for surplus in self._starting[max(0, wanted - self.world) :]:
            self._starting.remove(surplus)
            surplus.end()
        for _ in range(wanted - self._failed - self.world - len(self._starting)):
            self._starting.append(self._start())
        ready = [process for process in self._starting if process.ready]
        if not ready:
            self._ready_since_s = None
            return wanted < self.world
        now_s = time.monotonic()
        if self._ready_since_s is None:
            self._ready_since_s = now_s
        return len(ready) == len(self._starting) or now_s - self._ready_since_s > _GATHER_S

    def form(self, here: Resume) -> None:
        """Form the group of those who are wanted and ready. The training stands ``here``."""
        for leaving in self._active[max(0, self._wanted - 1) :]:
            self._active.remove(leaving)
            self._leave(leaving)
        joining = [process for process in self._starting if process.ready]
        self._starting = [process for process in self._starting if not process.ready]
        self._ready_since_s = None
        self._active += joining
        self._groups += 1
        meeting = str(self._scratch() / f"group-{self._groups}")
        handed_over = {name: part.state_dict() for name, part in self._parts.items()} if joining else {}
        for rank, process in enumerate(self._active, start=1):
            group = {"file": meeting, "rank": rank, "world": self.world}
            new = {"parts": handed_over} if process in joining else {}
            with process.reached() as wire:
                wire.send({**_open(here.position), **group, **new})
        self._replica.join(meeting, 0, self.world)

    def open_epoch(self, position: Position) -> Iterator[Any]:
        """Let all begin an epoch; returns this process's part of it."""
        for process in self._active:
            with process.reached() as wire:
                wire.send(_open(position))
        return _data.open_epoch(self._mine, position.epoch)

    def reopen_epoch(self, here: Resume) -> Iterator[Any]:
        """This process's part of what is left of an epoch; the others were told by ``form``."""
        position, whole = here.position, self._loader
        self._mine, self._division = whole, None
        if self._active:
            # Where workers live on, `_data` opens a later epoch twice.
            twice = position.epoch > 0 and whole.persistent_workers
            hand_out = [process.assign for process in self._active]
            self._division = Division(whole.batch_sampler, hand_out, position.batch, quiet_passes=int(twice))
            self._mine = loader_over(whole, self._division)
        return _data.reopen_epoch(self._mine, position.epoch, position.batch, here.epoch_start, here.now)

    def go(self) -> None:
        """Let all do the next batch."""
        if self._division is not None:
            self._replica.share = self._division.shares.popleft()
        for process in self._active:
            with process.reached() as wire:
                wire.go()

    def dismiss(self) -> None:
        """All batches are done: let the others go."""
        for process in self._active:
            self._leave(process)
        self._active = []
        with contextlib.suppress(RuntimeError):  # of a group that has fallen apart
            self._replica.part()

    def close(self) -> None:
        """The loop is over: wait until nobody is left, and leave nothing behind."""
        self.dismiss()
        for process in (*self._starting, *self._left):
            process.end()
        self._starting, self._left, self._wanted, self._failed = [], [], 1, 0
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _leave(self, process: _Process) -> None:
        """Send it away. It takes a moment to go, for which nobody waits now."""
        with contextlib.suppress(OSError):
            process.wire.send({"order": "leave"})
        process.wire.close()
        self._left.append(process)

    def _start(self) -> _Process:
        self._left = [process for process in self._left if not process.gone]
        taken = {process.device for process in (*self._active, *self._starting, *self._left)}
        device = next(index for index in range(1, len(taken) + 2) if index not in taken)
        return _Process(device, self._scratch())

    def _hear(self) -> None:
        """Take note of who is ready, and of who has died on the way."""
        for process in list(self._starting):
            try:
                while process.wire.waiting():
                    word: Any = process.wire.receive()
                    number = word["loop"]
                    process.ready = number == self._number
                    if number < self._number:
                        process.wire.send({"order": "skip"})
            except (EOFError, OSError):
                self._starting.remove(process)
                self._failed += 1
                code = process.end()
                say(f"a data-parallel process ended with exit code {code} before it reached the loop: going on without")

    def _scratch(self) -> Path:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="paceline-parallel-"))
        return self._folder


def _open(position: Position) -> dict[str, Any]:
    return {"order": "open", "epoch": position.epoch, "batch": position.batch, "done": position.done}


class _Process:
    """One of the others: this script once more, on another device."""

    def __init__(self, device: int, scratch: Path) -> None:
        self.device = device
        self.ready = False
        ours, theirs = socket.socketpair()
        self.wire = Wire(ours)
        output = scratch / f"output-{device}"  # what it writes beside the training is thrown away
        output.mkdir(exist_ok=True)
        environment = {name: value for name, value in os.environ.items() if name != ENV_CHECKPOINT}
        environment |= {ENV_SOCKET: str(theirs.fileno()), ENV_DEVICE: str(device), ENV_OUTPUT: str(output)}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, *sys.orig_argv[1:]],
                env=environment,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )

    @contextmanager
    def reached(self) -> Iterator[Wire]:
        """The connection to it. Raises ``RuntimeError`` if it has gone."""
        try:
            yield self.wire
        except OSError:
            raise RuntimeError(
                f"data_parallel: the process of device {self.device} has left the training (exit code {self.end()}). "
                "Leave the loop, or stop_early(), in all processes or in none: decide by what all of them see"
            ) from None

    def assign(self, assignment: BatchShare) -> None:
        """Hand out its part of a batch."""
        with self.reached() as wire:
            wire.assign(assignment)

    @property
    def gone(self) -> bool:
        """Whether it has ended."""
        return self._process.poll() is not None

    def end(self) -> int:
        """Let it go, with force if it stays; returns its exit code."""
        self.wire.close()
        if self.ready:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self._process.wait(_LEAVE_S)
        self._process.kill()
        return self._process.wait()
