"""The lead, the first process of data-parallel training: it starts the other processes and lets them join and leave.

Created by ``data_parallel``, run by ``_loop``.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.train._leaving import LoopExit
from paceline.train._loaders import check_divisible, with_batch_sampler
from paceline.train._samples import data_checksum
from paceline.train._source import BatchSource, LoopState, SessionState
from paceline.train._values import bad_value, log
from paceline.train.job import EXIT_DEVICE_LOST
from paceline.train.pacing.share import whole_cores
from paceline.train.pacing.threads import use_one_thread_on_cpu
from paceline.train.saving import data
from paceline.train.saving.checkpoint import Resume

from ._arrivals import IncompleteGroup
from ._pods import DevicePods, PodProcess
from ._process import FollowerProcess, ProcessLink, store_states
from ._slices import EXPECTED_SAMPLER, SlicedBatches
from ._watchdog import Watchdog
from ._wire import ProcessEnd

if TYPE_CHECKING:
    from ._exchanges import StepWatch
    from ._replica import Replica

# A ready process waits this long for processes that are still starting, because each join interrupts training.
_MAX_JOIN_WAIT_S = 5.0
# An exchange fails before the end of the connection to the lost process is noticed.
_LOST_TIMEOUT_S = 5.0
_IMPORTED_S = time.monotonic()


class Lead(BatchSource):
    """Manages the processes of data-parallel training from the first process.

    Parameters
    ----------
    replica:
        The first process's copy of the model.
    max_processes:
        The largest number of processes.
    """

    def __init__(self, replica: Replica, max_processes: int | None) -> None:
        super().__init__()
        self._replica = replica
        self._max_processes = max_processes
        self._loader: Any = None  # loads this process's slice of each batch
        self._slices: SlicedBatches | None = None
        self._order: int | None = None  # checksum of the batches that are done in this epoch; ``None`` if unknown
        self._active: list[ProcessLink] = []
        self._starting: list[ProcessLink] = []
        self._dismissed: list[ProcessLink] = []
        self._pods = DevicePods.from_environment()
        self._store: Any = None  # through which groups with processes in other pods form
        self._target, self._failed = 1, 0
        self._ready_since_s: float | None = None
        self._regroup = False
        self._groups = 0
        self._joined_at = 0  # value of ``done`` when the last process joined
        self._data_checksum: int | None = None  # of the loop's loader, once a process is ready
        self._steps: StepWatch | None = None
        self._folder: Path | None = None
        self._watchdog: Watchdog | None = None
        self._own_start_s = 0.0
        self._checks_use = max_processes != 1 and not replica.finds_unused

    @property
    def devices(self) -> int:  # type: ignore[override]
        """The number of processes, including this one."""
        return 1 + len(self._active)

    @property
    def _local_devices(self) -> int:
        return 1 + len(_local(self._active))

    def open(self, loop: LoopState, session: SessionState) -> None:
        """Prepare a loop. Processes that join receive the state of the session's parts."""
        super().open(loop, session)
        check_divisible(loop.loader)
        if not session.parts:
            accepted = "checkpoint(model=model, optimizer=optimizer) before the loop, for data_parallel()"
            raise bad_value("checkpoint", "nothing", accepted)
        use_one_thread_on_cpu()
        self._slice_batches()
        self._data_checksum = None
        self._steps = self._replica.watch_optimizers(session.parts)
        self._own_start_s = self._own_start_s or time.monotonic() - _IMPORTED_S

    def passes(self, resume: Resume | None) -> Iterator[Iterator[Any]]:
        """Yield this process's slices of the batches, epoch by epoch and group by group."""
        loop, self._order = self._loop, None
        while not loop.over:
            yield self._batches(self._start_epoch() if resume is None else self._resume_epoch(resume))
            if self._regroup:
                self._regroup = False  # the rest of the epoch may end before the next decision
                resume = self._form_group()
            else:
                resume = None
                loop.end_epoch()

    def adapt(self, now_s: float) -> bool:
        """Start or end processes; return whether to form a new group now."""
        self._regroup = self.adjust_processes(self._target_processes())
        return self._regroup

    def adjust_processes(self, target: int) -> bool:
        """Start missing processes, end surplus processes that are starting; return whether to form a new group now.

        ``target`` is the number of processes in this pod. The runtime decides which other pods there are.
        """
        if target != self._target:
            self._target, self._failed = target, 0
        self._update_starting()
        for surplus in _local(self._starting)[max(0, target - self._local_devices) :]:
            self._starting.remove(surplus)
            surplus.end()
        for _ in range(target - self._failed - self._local_devices - len(_local(self._starting))):
            try:
                self._start_process()
            except OSError as error:  # too many processes, too little memory, or a full disk
                self._failed += 1
                log(f"a data-parallel process cannot be started ({error}): training continues without it")
        if self._pods is not None and self._pods.has_waiting:
            most = self._max_processes and max(self._max_processes - self.devices - len(self._starting), 0)
            self._starting += self._pods.take(store_states(self._scratch_folder()), most)
        if self._starting and self._watchdog is None:
            processes = (lambda: self._active), (lambda: self._starting)
            self._watchdog = Watchdog(self._replica, *processes, self._own_start_s)
        ready = self._ready_processes()
        if not ready or self._leaving_pods():
            self._ready_since_s = None
            return target < self._local_devices or bool(self._leaving_pods())
        now_s = time.monotonic()
        if self._ready_since_s is None:
            self._ready_since_s = now_s
        return len(ready) == len(self._starting) or now_s - self._ready_since_s > _MAX_JOIN_WAIT_S

    def end(self, *, stopped: bool) -> None:
        """Dismiss the other processes after the last batch."""
        self.before_save()
        self._dismiss_active()

    def before_save(self) -> None:
        """Compare the states of all processes. Raises ``RuntimeError`` if they differ."""
        if self._active and not self._replica.finds_unused:
            self._replica.check_use()  # a missing gradient is a cause of a difference
        for process in self._active:
            with process.connection() as wire:
                wire.send({"command": "compare"})
        self._replica.compare(self._session.parts, self._loop.done)

    def _dismiss_active(self) -> None:
        for process in self._active:
            self._dismiss_process(process)
        self._active = []
        with contextlib.suppress(RuntimeError):  # the group may be broken
            self._replica.leave()

    def close(self) -> None:
        """Wait until all processes have ended, and remove the temporary folder."""
        if self._active and LoopExit().is_error and not self._session.terminating:
            self._exit_if_device_lost(self._active)
        data.end_workers_at_exit(self._loader)
        if self._steps is not None:
            self._steps.close()
        if self._watchdog is not None:
            self._watchdog.close()
            self._watchdog = None
        broken = list(self._active)  # empty if the loop has ended
        self._dismiss_active()
        for process in (*self._starting, *self._dismissed):
            process.end()
        for process in broken if LoopExit().is_error else ():
            if process.failed:  # the training code gets an error of torch, which does not name the process
                atexit.register(log, f"data_parallel: {process.describe_end()}")
        self._starting, self._dismissed, self._target, self._failed = [], [], 1, 0
        self._regroup = False
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _target_processes(self) -> int:
        """Return the number of processes for the share of the devices, rounded up; without a share, one per GPU."""
        share, gpus = self._loop.threads.share.read_devices(), _gpu_count()
        target = whole_cores(share) if share is not None else max(gpus, 1)
        return min(target, gpus or target, self._max_processes or target)

    def _start_epoch(self) -> Iterator[Any]:
        self.epoch_start, self._order = data.snapshot(self._loop.loader), 0
        for process in self._active:
            with process.connection() as wire:
                wire.send({**self._position(), "start": self.epoch_start})
        return data.start_epoch(self._loader, self._loop.epoch)

    def _resume_epoch(self, resume: Resume) -> Iterator[Any]:
        """Return this process's slices of the remaining batches. ``_form_group`` has informed the other processes."""
        self.epoch_start = resume.epoch_start
        self._slice_batches()
        return data.resume_epoch(self._loader, self._loop.epoch, resume)

    def _slice_batches(self) -> None:
        loader = self._loop.loader
        self._slices = SlicedBatches(loader.batch_sampler, 0, self.devices, self._replica.min_samples)
        self._loader = with_batch_sampler(loader, self._slices)

    def _batches(self, own_batches: Iterator[Any]) -> Iterator[Any]:
        assert self._slices is not None
        for batch in own_batches:
            if any(process.is_lost() for process in self._active if isinstance(process, PodProcess)):
                self._regroup = True
                return
            part = self._slices.take(self._loop.batch)
            if self._order not in (part.before, None):
                raise RuntimeError(
                    "data_parallel: the sampler yields other samples for the batches of this epoch that are done: "
                    f"{EXPECTED_SAMPLER}"
                )
            self._order = part.checksum
            if not self._active:
                self._replica.start_batch()
            else:
                since_joined = self._loop.done - self._joined_at
                if since_joined & (since_joined - 1) == 0 and since_joined:  # after 1, 2, 4, 8, ... batches
                    self.before_save()
                self._loop.begin_batch()  # before the other processes compute, and wait on their GPUs for this one
                self._replica.start_batch(part.weight, part.samples)
                exchanges = 0 if self._replica.arrivals is None else self._replica.arrivals.count
                for process in self._active:
                    with process.connection() as wire:
                        wire.start_batch(part.checksum, exchanges)
            yield batch
            if self._checks_use and not self._active:
                self._checks_use = not self._replica.check_use()

    def _form_group(self) -> Resume:
        """Add ready processes to the group and remove surplus processes; return the point where training continues."""
        resume = Resume(self._loop.position(), self.epoch_start, data.snapshot(self._loop.loader), {})
        lost = [process for process in self._leaving_pods() if process.is_lost()]
        if lost and self._replica.accumulates:  # the processes have different gradients, and cannot add them up
            self._exit_if_device_lost(lost)
        for pod in lost:
            self._active.remove(pod)
            log(f"{pod.describe_end()}: training continues without it")
            pod.end()
        if not lost:
            self.before_save()
            for process in self._active:
                with process.connection() as wire:
                    wire.send({"command": "share gradients"})
            self._replica.share_gradients()
        for leaving in (*_local(self._active)[max(0, self._target - 1) :], *self._leaving_pods()):
            self._active.remove(leaving)
            self._dismiss_process(leaving)
        joining = self._ready_processes()
        self._starting = [process for process in self._starting if process not in joining]
        self._ready_since_s = None
        self._active += joining
        self._joined_at = self._loop.done
        while missing := self._missing_from_group(resume, joined=bool(joining or lost)):
            for process in missing:
                self._active.remove(process)
                self._failed += not isinstance(process, PodProcess)
                if not process.has_ended:
                    process.kill("did not join in time and was killed")
                log(f"{process.describe_end()}: training continues without it")
        others = f"{self.devices} processes train" if self._active else "1 process trains"
        log(f"data_parallel: {others} from batch {self._loop.done}")
        return resume

    def _leaving_pods(self) -> list[PodProcess]:
        """Return the processes of the group whose pods end or are lost."""
        pods = [process for process in self._active if isinstance(process, PodProcess)]
        return [one for one in pods if one.is_lost() or (self._pods and self._pods.is_leaving(one.device))]

    def _exit_if_device_lost(self, processes: Sequence[ProcessLink]) -> None:
        """End the job if the pod of one of the ``processes`` is lost: its runtime restarts it from the checkpoint."""
        give_up_s = time.monotonic() + _LOST_TIMEOUT_S
        for process in processes:
            if isinstance(process, PodProcess) and process.is_lost(max(give_up_s - time.monotonic(), 0.0)):
                log(f"data_parallel: {process.describe_end()} during a batch")
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(EXIT_DEVICE_LOST)

    def _place_of_group(self) -> str:
        """Return where the next group forms, for this process."""
        self._groups += 1
        if self._pods is None:
            return str(self._scratch_folder() / f"group-{self._groups}")
        if self._store is None:
            import torch.distributed as dist

            self._store = dist.TCPStore(  # type: ignore[attr-defined]
                "127.0.0.1", 0, is_master=True, wait_for_workers=False
            )
        return f"tcp://127.0.0.1:{self._store.port}/{self._groups}"

    def _missing_from_group(self, resume: Resume, *, joined: bool) -> list[ProcessLink]:
        """Form a group of the active processes; return those that did not join, without which no group was formed."""
        place = self._place_of_group()
        for rank, process in enumerate(self._active, start=1):
            own = place.replace("127.0.0.1", process.wire.own_host) if isinstance(process, PodProcess) else place
            group = {"file": own, "rank": rank, "world": self.devices, "joining": joined}
            group["accumulates"] = self._replica.accumulates
            with contextlib.suppress(OSError):  # the process has ended: it will be missing
                process.wire.send({**self._position(), "start": resume.epoch_start, "now": resume.now, "group": group})
        try:
            self._replica.join(
                place,
                0,
                self.devices,
                self._session.parts if joined else {},
                lambda rank: self._active[rank - 1].has_ended,
            )
        except IncompleteGroup as error:
            return [self._active[rank - 1] for rank in error.ranks]
        return []

    def _ready_processes(self) -> list[ProcessLink]:
        """Return the processes that can join now."""
        return [process for process in self._starting if process.ready and not process.is_stopped]

    def _position(self) -> dict[str, Any]:
        names = ("epoch", "batch", "done", "epochs", "total")
        return {"command": "open", "position": {name: getattr(self._loop, name) for name in names}}

    def _dismiss_process(self, process: ProcessLink) -> None:
        process.dismiss()
        self._dismissed.append(process)

    def _start_process(self) -> None:
        """Start a process on a free device. A device stays allocated until its process exits."""
        self._dismissed = [process for process in self._dismissed if not process.has_ended]
        processes = (*self._active, *self._starting, *self._dismissed)
        taken = {process.device for process in processes}
        free = set(range(1, _gpu_count() or len(processes) + 2)) - taken
        if free:
            self._starting.append(FollowerProcess(min(free), self._scratch_folder()))

    def _update_starting(self) -> None:
        """Mark the processes that are ready, and remove those that ended before the loop."""
        for process in list(self._starting):
            try:
                while process.wire.is_readable():
                    message: Any = process.wire.receive()
                    if isinstance(message, ProcessEnd):
                        process.note(message)
                        raise EOFError
                    process.ready = message["loop"] == self._session.loops_started
                    if process.ready:
                        self._check_data(message.get("data"))
                    else:
                        process.wire.send({"command": "skip"})
            except (EOFError, OSError):
                self._starting.remove(process)
                self._failed += not isinstance(process, PodProcess)
                log(f"{process.describe_end()} before it joined: training continues without it")

    def _check_data(self, checksum: int | None) -> None:
        """Raise ``RuntimeError`` if a process that is ready has other data than this one."""
        if self._data_checksum is None:
            self._data_checksum = data_checksum(self._loop.loader)
        if None not in (checksum, self._data_checksum) and checksum != self._data_checksum:
            raise RuntimeError(
                "data_parallel: a process that is to join has other data than the first one (other values, or another "
                "number of samples). Each process runs the script: seed each random split and each generator of its "
                "own, sort sets before their order counts, and change no data in the loop"
            )

    def _scratch_folder(self) -> Path:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="paceline-parallel-"))
        return self._folder


def _local(processes: Sequence[ProcessLink]) -> list[ProcessLink]:
    """Return the processes in this pod."""
    return [process for process in processes if not isinstance(process, PodProcess)]


def _gpu_count() -> int:
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0
