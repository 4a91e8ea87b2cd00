"""A simulated GPU and its clock, for jobs that share it. Only one job runs at a time, so each run is the same."""

from __future__ import annotations

import heapq
import itertools
import json
import threading
from collections.abc import Callable
from pathlib import Path

from paceline.train.pacing._gpu_turns import GpuTurns
from paceline.train.pacing.gpu_share import GpuShare

_LIMIT_S = 60.0  # real time
_MAX_AHEAD_S = 0.1  # work on the GPU that a job may have launched but not computed


class SimulatedTime:
    """A clock for several jobs. A job that sleeps lets the one with the earliest wake-up run."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._asleep: list[tuple[float, int, threading.Event]] = []
        self._numbers = itertools.count()
        self._stopped = threading.Semaphore(0)
        self._errors: list[BaseException] = []

    def clock(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        gate = threading.Event()
        heapq.heappush(self._asleep, (self.now_s + seconds, next(self._numbers), gate))
        self._stopped.release()
        assert gate.wait(_LIMIT_S), "the simulation has failed"

    def run(self, *jobs: Callable[[], None]) -> None:
        """Run the jobs to their ends."""

        def body(job: Callable[[], None]) -> None:
            try:
                self.sleep(0.0)
                job()
            except BaseException as error:
                self._errors.append(error)
            self._stopped.release()

        for job in jobs:
            threading.Thread(target=body, args=(job,), daemon=True).start()
            self._await_job()
        while self._asleep and not self._errors:
            self.now_s, _, gate = heapq.heappop(self._asleep)
            gate.set()
            self._await_job()
        if self._errors:
            raise self._errors[0]

    def _await_job(self) -> None:
        assert self._stopped.acquire(timeout=_LIMIT_S), "a job hangs"


class SimulatedGpu:
    """A GPU that computes what all jobs launch, in this order, and the folder with the files that they lock."""

    def __init__(self, folder: Path, time: SimulatedTime) -> None:
        self.time = time
        self.free_s = 0.0
        self.turn = folder / "turn"
        self.turn.mkdir()
        self._folder = folder

    def job(self, name: str, share: float, **options: float) -> SimulatedJob:
        return SimulatedJob(self, self._folder / f"{name}.json", share, **options)


class SimulatedJob:
    """A job on the GPU, and its timer: each batch takes ``gpu_s`` on the GPU, and ``host_s`` to launch its kernels."""

    def __init__(
        self, gpu: SimulatedGpu, control: Path, share: float, gpu_s: float = 0.05, host_s: float = 0.002
    ) -> None:
        self._gpu, self._time, self._control = gpu, gpu.time, control
        self._gpu_s, self._host_s = gpu_s, host_s
        self._end_s = 0.0  # of the work that is launched
        self._begin_s = self._spans_s = 0.0
        self.set_share(share)
        self.ending = False
        self.began_s: list[float] = []
        self.timed = 0
        now, sleep = self._time.clock, self._time.sleep
        self.turns = GpuTurns([str(gpu.turn)], clock=now, sleep=sleep, ending=lambda: self.ending)
        self.share = GpuShare(
            control, self.turns, clock=now, sleep=sleep, timer=lambda _: self, ending=lambda: self.ending
        )

    def set_share(self, share: float) -> None:
        self._control.write_text(json.dumps({"devices": share}))

    def train(self, until_s: float, *, refresh_s: float = 0.5) -> None:
        """Train batches until ``until_s``."""
        refresh_at_s = 0.0
        while self._time.now_s < until_s:
            if self._time.now_s >= refresh_at_s:
                self.share.refresh()
                refresh_at_s = self._time.now_s + refresh_s
            self.train_batch(self._gpu_s)
        self.share.close()

    def train_batch(self, gpu_s: float) -> None:
        self.share.begin()
        self.began_s.append(self._time.now_s)
        launched_s = self._time.now_s + self._host_s
        self._gpu.free_s = self._end_s = max(max(self._time.now_s, self._gpu.free_s) + gpu_s, launched_s)
        self._time.sleep(self._host_s)
        now_s = self._time.now_s
        self._time.sleep(max(self._end_s - now_s - _MAX_AHEAD_S, 0.0))
        self.share.end(due=False)

    def speed(self, from_s: float, until_s: float) -> float:
        """Return the speed as a share of the speed with the whole GPU."""
        batches = sum(from_s <= began_s < until_s for began_s in self.began_s)
        return batches * max(self._gpu_s, self._host_s) / (until_s - from_s)

    # --- the timer ------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        self.timed += 1
        self._begin_s = max(self._time.now_s, self._end_s)

    def end(self) -> None:
        self._spans_s += max(self._time.now_s, self._end_s) - self._begin_s

    def wait(self) -> float:
        self._time.sleep(max(self._end_s - self._time.now_s, 0.0))
        spans_s, self._spans_s = self._spans_s, 0.0
        return spans_s
