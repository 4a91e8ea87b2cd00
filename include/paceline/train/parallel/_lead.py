"""The lead, the first process of data-parallel training: it starts the other processes and lets them join and leave.

Created by ``data_parallel``, run by ``_loop``.
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

from paceline.train._values import bad_value, log
from paceline.train.job import ENV_CHECKPOINT, ENV_OUTPUT
from paceline.train.pacing.share import whole_cores
from paceline.train.pacing.threads import use_one_thread_on_cpu
from paceline.train.saving import data

from ._follower import ENV_DEVICE, ENV_SOCKET
from ._sharding import ShardingSampler, check_divisible, with_batch_sampler
from ._wire import BatchShare, Wire

if TYPE_CHECKING:
    from paceline.train.saving.checkpoint import Position, Resume, Stateful

    from ._replica import Replica

# A ready process waits this long for processes that are still starting, because each join interrupts training.
_MAX_JOIN_WAIT_S = 5.0
_EXIT_TIMEOUT_S = 10.0


class Lead:
    """Manages the processes of data-parallel training from the first process.

    Parameters
    ----------
    replica:
        The first process's copy of the model.
    max_processes:
        The largest number of processes.
    """

    def __init__(self, replica: Replica, max_processes: int | None) -> None:
        self._replica = replica
        self._max_processes = max_processes
        self._loop_number = 0
        self._parts: dict[str, Stateful] = {}
        self._loader: Any = None
        self._own_loader: Any = None  # loads this process's shard of each batch
        self._sharding: ShardingSampler | None = None  # ``None`` with a single process
        self._active: list[_Process] = []
        self._starting: list[_Process] = []
        self._dismissed: list[_Process] = []
        self._target, self._failed = 1, 0
        self._ready_since_s: float | None = None
        self._groups = 0
        self._folder: Path | None = None

    @property
    def world_size(self) -> int:
        """The number of processes, including this one."""
        return 1 + len(self._active)

    def start_loop(self, number: int, loader: Any, parts: dict[str, Stateful]) -> None:
        """Start loop ``number`` of the script. Processes that join receive the state of ``parts``."""
        check_divisible(loader)
        if not parts:
            accepted = "checkpoint(model=model, optimizer=optimizer) before the loop, for data_parallel()"
            raise bad_value("checkpoint", "nothing", accepted)
        use_one_thread_on_cpu()
        self._loop_number, self._parts = number, parts
        self._loader = self._own_loader = loader

    def target_processes(self, share: float | None) -> int:
        """Return the number of processes for a share of the devices, rounded up; without a share, one per GPU."""
        import torch

        gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
        target = whole_cores(share) if share is not None else max(gpus, 1)
        return min(target, gpus or target, self._max_processes or target)

    def adjust_processes(self, target: int) -> bool:
        """Start missing processes, end surplus processes that are starting; return whether to form a new group now."""
        if target != self._target:
            self._target, self._failed = target, 0
        self._update_starting()
        for surplus in self._starting[max(0, target - self.world_size) :]:
            self._starting.remove(surplus)
            surplus.end()
        for _ in range(target - self._failed - self.world_size - len(self._starting)):
            self._starting.append(self._start_process())
        ready = [process for process in self._starting if process.ready]
        if not ready:
            self._ready_since_s = None
            return target < self.world_size
        now_s = time.monotonic()
        if self._ready_since_s is None:
            self._ready_since_s = now_s
        return len(ready) == len(self._starting) or now_s - self._ready_since_s > _MAX_JOIN_WAIT_S

    def form_group(self, resume: Resume) -> None:
        """Add ready processes to the group and remove surplus processes; the new group continues at ``resume``."""
        for leaving in self._active[max(0, self._target - 1) :]:
            self._active.remove(leaving)
            self._dismiss_process(leaving)
        joining = [process for process in self._starting if process.ready]
        self._starting = [process for process in self._starting if not process.ready]
        self._ready_since_s = None
        self._active += joining
        self._groups += 1
        rendezvous = str(self._scratch_folder() / f"group-{self._groups}")
        states = {name: part.state_dict() for name, part in self._parts.items()} if joining else {}
        for rank, process in enumerate(self._active, start=1):
            group = {"file": rendezvous, "rank": rank, "world": self.world_size}
            new = {"parts": states} if process in joining else {}
            with process.connection() as wire:
                wire.send({**_start_command(resume.position), **group, **new})
        self._replica.join(rendezvous, 0, self.world_size)

    def start_epoch(self, position: Position) -> Iterator[Any]:
        """Start an epoch in all processes; return this process's shard of it."""
        for process in self._active:
            with process.connection() as wire:
                wire.send(_start_command(position))
        return data.start_epoch(self._own_loader, position.epoch)

    def resume_epoch(self, resume: Resume) -> Iterator[Any]:
        """Return this process's shard of the remaining batches of an epoch.

        ``form_group`` has sent the commands to the other processes.
        """
        position, loader = resume.position, self._loader
        self._own_loader, self._sharding = loader, None
        if self._active:
            # With persistent loader workers, `_data` iterates over the loader twice in every epoch except the first.
            iterated_twice = position.epoch > 0 and loader.persistent_workers
            senders = [process.assign for process in self._active]
            self._sharding = ShardingSampler(
                loader.batch_sampler, senders, position.batch, dry_passes=int(iterated_twice)
            )
            self._own_loader = with_batch_sampler(loader, self._sharding)
        return data.resume_epoch(self._own_loader, position.epoch, position.batch, resume.epoch_start, resume.now)

    def start_batch(self) -> None:
        """Start the next batch in all processes."""
        if self._sharding is not None:
            self._replica.share = self._sharding.shares.popleft()
        for process in self._active:
            with process.connection() as wire:
                wire.start_batch()

    def dismiss(self) -> None:
        """Dismiss the other processes after the last batch."""
        for process in self._active:
            self._dismiss_process(process)
        self._active = []
        with contextlib.suppress(RuntimeError):  # the group may be broken
            self._replica.leave()

    def close(self) -> None:
        """End the loop: wait until all processes have ended and remove the temporary folder."""
        self.dismiss()
        for process in (*self._starting, *self._dismissed):
            process.end()
        self._starting, self._dismissed, self._target, self._failed = [], [], 1, 0
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _dismiss_process(self, process: _Process) -> None:
        """Dismiss a process without waiting until it has ended."""
        with contextlib.suppress(OSError):
            process.wire.send({"command": "leave"})
        process.wire.close()
        self._dismissed.append(process)

    def _start_process(self) -> _Process:
        self._dismissed = [process for process in self._dismissed if not process.has_ended]
        taken = {process.device for process in (*self._active, *self._starting, *self._dismissed)}
        device = next(index for index in range(1, len(taken) + 2) if index not in taken)
        return _Process(device, self._scratch_folder())

    def _update_starting(self) -> None:
        """Mark the processes that are ready, and remove those that ended before the loop."""
        for process in list(self._starting):
            try:
                while process.wire.is_readable():
                    message: Any = process.wire.receive()
                    number = message["loop"]
                    process.ready = number == self._loop_number
                    if number < self._loop_number:
                        process.wire.send({"command": "skip"})
            except (EOFError, OSError):
                self._starting.remove(process)
                self._failed += 1
                code = process.end()
                log(f"a data-parallel process ended before the loop (exit code {code}): training continues without it")

    def _scratch_folder(self) -> Path:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="paceline-parallel-"))
        return self._folder


def _start_command(position: Position) -> dict[str, Any]:
    return {"command": "open", "epoch": position.epoch, "batch": position.batch, "done": position.done}


class _Process:
    """A follower process, which runs this script on another device."""

    def __init__(self, device: int, scratch_folder: Path) -> None:
        self.device = device
        self.ready = False
        ours, theirs = socket.socketpair()
        self.wire = Wire(ours)
        output = scratch_folder / f"output-{device}"  # deleted after the loop
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
    def connection(self) -> Iterator[Wire]:
        """Yield the connection to the process. Raises ``RuntimeError`` if the process has ended."""
        try:
            yield self.wire
        except OSError:
            raise RuntimeError(
                f"data_parallel: the process of device {self.device} has left the loop (exit code {self.end()}). "
                "All processes must leave the loop or call stop_early() at the same batch: "
                "base the decision on a value that is equal in all processes"
            ) from None

    def assign(self, assignment: BatchShare) -> None:
        """Send the process its shard of a batch."""
        with self.connection() as wire:
            wire.assign(assignment)

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended."""
        return self._process.poll() is not None

    def end(self) -> int:
        """Wait for the process to end, and kill it if it does not; return its exit code."""
        self.wire.close()
        if self.ready:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self._process.wait(_EXIT_TIMEOUT_S)
        self._process.kill()
        return self._process.wait()
