"""Keeps the job's share of the time of its GPUs, between two batches of the training loop. Called by ``_loop``.

Credit grows by the share of the time that passes, and each batch costs the time that it computes. Without credit, the
next batch waits. Several jobs take turns on a GPU, because two jobs that compute at once would each pay for both.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from paceline.train._values import bad_value
from paceline.train.job import ENV_CONTROL, ENV_GPU_TURNS, is_follower, rank_count

from ._gpu_timer import GpuTimer, choose_timer
from ._gpu_turns import GpuTurns
from .share import read_control

# Duration of a turn. The GPU is idle from the end of a turn until the next batch is launched, so that shorter turns
# waste more of its time, and longer ones let other jobs wait longer.
_TURN_S = 0.06
# Largest credit that grows while the job does not need the GPU, in seconds of the GPU's time.
_MAX_CREDIT_S = 0.25
# Largest credit that grows while the job waits for its turn: a job with short batches catches up with one with long
# batches.
_MAX_OWED_S = 2.0
_SHORT_WAIT_S = 0.001  # waiting for the next batch for less time than this is no waiting for data
_LOOK_S = 0.05  # longest time until a new share takes effect while the job waits for credit
_ROUNDING_S = 1e-6


class GpuShare:
    """The share of the time of the job's GPUs that this process may use.

    Parameters
    ----------
    control:
        The control file with the allocation in GPUs.
    turns:
        The turns on the job's GPUs.
    clock, sleep:
        The time in seconds, and a function that waits.
    timer:
        Returns what measures the time that a GPU computes.
    ending:
        Returns whether the process has to end soon, and must not wait.

    Notes
    -----
    Everything between the start and the end of a batch counts, also a validation in the body of the loop. With the
    whole GPU, nothing is measured and nothing waits.
    """

    def __init__(
        self,
        control: Path,
        turns: GpuTurns,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
        timer: Callable[[GpuTimer | None], GpuTimer] = choose_timer,
        ending: Callable[[], bool] = lambda: False,
    ) -> None:
        self._control, self._turns = control, turns
        self._clock, self._sleep, self._choose_timer, self._is_ending = clock, sleep, timer, ending
        self._timer: GpuTimer | None = None
        self._share = 1.0
        self._credit_s, self._earned_until_s = 0.0, clock()
        self._owed_s = 0.0  # credit at the start of the last turn
        self.waited_s = 0.0
        """Seconds for which batches have waited."""
        self._used_s: float | None = None
        self._has_turn = self._in_batch = self._outside = False
        self._turn_began_s = 0.0
        self._batches, self._planned = 0, 1  # batches of this turn: done, and for which it should last
        self._batch_s = self._batch_ended_s = 0.0
        self._waits_for_data = False
        self.refresh()

    @classmethod
    def from_environment(
        cls,
        clock: Callable[[], float],
        ending: Callable[[], bool],
        environ: Mapping[str, str] = os.environ,
    ) -> GpuShare | None:
        """Return the share of this process; ``None`` if the job's devices are no shares of GPUs.

        The first process of ``data_parallel`` keeps the share for all, because it starts each batch in all processes.
        Raises ``ValueError`` in a process of ``torchrun``: its ranks would wait for each other on the GPUs.
        """
        paths = environ.get(ENV_GPU_TURNS)
        if not paths or is_follower():
            return None
        if rank_count() > 1:
            accepted = "one process, or data_parallel(), for a share of the GPUs; torchrun needs quantum=1"
            raise bad_value("WORLD_SIZE", rank_count(), accepted)
        turns = GpuTurns(paths.split(os.pathsep), clock=clock, ending=ending)
        return cls(Path(environ[ENV_CONTROL]), turns, clock=clock, ending=ending)

    @property
    def used_s(self) -> float | None:
        """Seconds for which the GPUs have computed for this process, summed over them; ``None`` with whole GPUs."""
        return None if self._used_s is None else self._used_s * self._turns.count

    def refresh(self) -> None:
        """Read the allocation. With the whole GPU, only this call notices a new one."""
        now_s = self._clock()
        self._credit_s += self._share * (now_s - self._earned_until_s)
        self._earned_until_s = now_s
        devices = read_control(self._control)
        if devices is not None:
            self._share = devices / self._turns.count
        if self._share >= 1:
            self._credit_s, self._used_s = 0.0, None
        elif self._used_s is None:
            self._used_s = 0.0

    def begin(self) -> None:
        """Wait until the next batch may begin. A second call before the batch's end does nothing."""
        if self._in_batch:
            return
        if self._outside:
            self._end_outside()
        if self._share < 1:
            waited_s = self._clock() - self._batch_ended_s
            self._waits_for_data = waited_s > max(self._batch_s, _SHORT_WAIT_S)
            if self._waits_for_data and self._has_turn:
                self._end_turn()
        if not self._has_turn and self._share < 1:
            began_s = self._clock()
            self._begin_turn()
            self.waited_s += self._clock() - began_s
        if not self._has_turn:
            return
        assert self._timer is not None  # set by _begin_turn
        self._timer.begin()
        self._in_batch = True

    def end(self, *, due: bool) -> None:
        """End a batch, and the turn if it has lasted long enough or other work is ``due`` between the batches."""
        if not self._in_batch:
            return
        assert self._timer is not None  # set at the start of the turn
        self._timer.end()
        self._in_batch = False
        self._batches += 1
        self._batch_ended_s = self._clock()
        if due or self._batches >= self._planned or self._batch_ended_s - self._turn_began_s >= _TURN_S:
            self._end_turn()

    def leave(self, *, counts: bool = False) -> None:
        """End the turn because the loop is left. With ``counts``, the time until the next ``begin`` counts, too."""
        self.end(due=True)
        if self._has_turn:
            self._end_turn()
        if counts and self._share < 1:
            self._timer = self._choose_timer(self._timer)
            self._timer.begin()
            self._outside = True

    def close(self) -> None:
        """End the turn, and do not count what follows."""
        self.leave()
        if self._outside:
            self._end_outside()

    def _begin_turn(self) -> None:
        """Wait for credit and for the turn, unless the batches need not be measured."""
        self.refresh()
        while self._credit_s < -_ROUNDING_S and self._share < 1 and not self._is_ending():
            self._sleep(min(-self._credit_s / self._share, _LOOK_S))
            self.refresh()
        if self._share >= 1 or self._is_ending():
            return
        self._credit_s = min(self._credit_s, max(self._owed_s, _MAX_CREDIT_S))
        self._turns.take()
        self.refresh()
        self._owed_s = self._credit_s = min(self._credit_s, _MAX_OWED_S)
        self._timer = self._choose_timer(self._timer)
        self._has_turn, self._batches, self._turn_began_s = True, 0, self._clock()

    def _end_turn(self) -> None:
        assert self._timer is not None  # set at the start of the turn
        try:
            busy_s = self._timer.wait()
        finally:  # CUDA reports an error of the training code when it is waited for
            self._turns.release()
            self._has_turn = False
        self._pay(busy_s)
        self._batch_s = busy_s / self._batches if self._batches else 0.0
        # Keep no turn while the loop waits for its data, but wait for the GPU after each batch.
        is_short = self._batch_s > 0 and not self._waits_for_data
        self._planned = max(1, round(_TURN_S / self._batch_s)) if is_short else 1

    def _end_outside(self) -> None:
        assert self._timer is not None  # set by ``leave``
        self._timer.end()
        self._pay(self._timer.wait())
        self._outside = False

    def _pay(self, busy_s: float) -> None:
        self.refresh()
        if self._used_s is not None:
            self._credit_s -= busy_s
            self._used_s += busy_s
