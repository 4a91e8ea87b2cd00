"""The state that the loops, reports and checkpoints of a process share, and its SIGTERM handler.

Training code calls ``report`` and ``stop_early``; ``_loop`` and ``_checkpoint`` use ``Session``.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import math
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from ._alone import SingleProcess
from ._display import Display, choose_display
from ._resampled import Resampled
from ._source import BatchSource, EpochsState, LoopState
from ._values import deferred_number
from .job import EXIT_TERMINATED, is_worker, rank, run_by_paceline
from .pacing.gpu_share import GpuShare
from .progress import Progress, Resamples
from .saving import ranks
from .saving.checkpoint import Checkpoint, Saver, Stateful
from .saving.data import SharedGenerators

if TYPE_CHECKING:
    from .parameter_server.worker import TrainingWorker


class Session:
    """The training state of this process. ``current`` is the only instance outside tests."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.epochs: EpochsState | None = None  # the loop over epochs that contains the loop over batches
        self.loops_started = 0  # number of loops in this process
        self.first_loop = 0  # number of loops before the last checkpoint() outside a loop
        self.trainings: Display | None = None  # shows the loops as parts of the script's trainings
        self.single_epochs: set[tuple[str, int]] = set()  # lines with track() loops of one epoch since checkpoint()
        self.checked: set[str] = set()  # functions whose iterators were looked for in enumerate() and zip()
        self.last: Progress | None = None  # the last progress shown; reports outside a loop repeat it
        self.checkpoint: Saver | None = None
        self.shared: SharedGenerators | None = None  # since the first loop after checkpoint()
        self.parts: dict[str, Stateful] = {}  # as passed to checkpoint()
        self.role: BatchSource | None = None  # set by data_parallel()
        self.worker: TrainingWorker | None = None  # set by the loop if there is a parameter server
        self.terminating = False
        self.close_abandoned: Callable[..., None] | None = None  # closes a loop whose library has failed
        self._loop: LoopState | None = None
        self._values: dict[str, Callable[[], float]] = {}
        self._report_counts: Counter[str] = Counter()
        self._resamples: dict[str, Resamples] = {}  # resamples of metrics that no line contains yet
        self._gpu_share: GpuShare | None = None
        self._display: Display | None = None
        self._next_report_s = float("-inf")
        self._report_pending = (
            False  # whether values were reported that no line contains, or no line of a finished loop
        )
        self._newer_follows = False  # since a report that came too soon for a line: lines say that a newer one follows
        self._reporter_pid: int | None = None
        self._handler_before: Any = None
        self._handler_pid: int | None = None

    @property
    def loop(self) -> LoopState | None:
        """The current loop. One that an error in its library has left open is closed first."""
        if self.close_abandoned is not None:
            self.close_abandoned()
        return self._loop

    @loop.setter
    def loop(self, loop: LoopState | None) -> None:
        self._loop = loop

    def number_loop(self) -> int:
        """Return the number of the loop that begins, counted since ``checkpoint``.

        On a restart, the first loop restores what it shares with later loops, if it is done itself.
        """
        number = self.loops_started - self.first_loop
        if number == 0 and self.epochs is None and isinstance(self.checkpoint, Checkpoint):
            self.shared = SharedGenerators()
            resume = self.checkpoint.resume
            if resume is not None and (resume.position.loop or resume.position.ended):
                self.shared.restore(resume.now.get("shared", ()))
        return number

    def batches_done(self) -> int:
        """Return the number of batches done in the current loop."""
        return self.loop.done if self.loop is not None else 0

    def reported_values(self) -> dict[str, float]:
        """Return the newest value of each reported name."""
        return {name: value() for name, value in self._values.items()}

    def newest_report(self, name: str) -> tuple[int, float]:
        """Return the number of reports of ``name`` in this process and the newest value; NaN without a value."""
        value = self._values.get(name)
        return self._report_counts[name], math.nan if value is None else value()

    def restore_reported(self, values: dict[str, float]) -> None:
        """Restore the values that were reported before a restart."""
        self._values = {name: deferred_number(name, value) for name, value in values.items()} | self._values

    def report(self, values: dict[str, Any]) -> None:
        """Store values for the next line. Outside a loop, write a line now; at the latest, one follows at exit."""
        for name, value in values.items():
            self._values[name] = deferred_number(name, value)
            self._report_counts[name] += 1
        if not values:
            return
        if self._reporter_pid != os.getpid():
            self._reporter_pid = os.getpid()
            _call_at_exit(self.flush_report)
        self._report_pending = True
        if self.loop is not None:
            return
        for name, value in values.items():
            self._resamples.pop(name, None)
            if isinstance(value, Resampled):
                self._resamples[name] = value.resamples
        now_s = self.clock()
        if now_s >= self._next_report_s:
            self._show_report(now_s)
        elif not self._newer_follows:
            self._newer_follows = True
            self._show_report(now_s, resampled=False)

    def flush_report(self) -> None:
        """Write the values that no line contains yet, or that a loop left unfinished has written."""
        if self._report_pending and self._reporter_pid == os.getpid():  # a forked process repeats no report
            self._newer_follows = False
            self._show_report(self.clock())

    def show(self, progress: Progress, display: Display | None) -> None:
        """Show the progress of a loop, which contains the newest values."""
        self.last = progress
        if display is not None:
            self._newer_follows = False
            self._report_pending = progress.event != "finish" and bool(self._values)
            display.show(progress)

    def _show_report(self, now_s: float, *, resampled: bool = True) -> None:
        self._report_pending = self._newer_follows
        if self._display is None:
            self._display = choose_display()
        resamples: dict[str, Resamples] = {}
        if resampled:
            self._next_report_s = now_s + min(self._display.interval_s, 0.2)
            resamples, self._resamples = self._resamples, {}
        before = self.last or Progress(done=1, total=1)
        values = self.reported_values()
        self._display.show(
            Progress(
                done=before.done,
                total=before.total,
                epoch=before.epoch,
                epochs=before.epochs,
                event="report",
                loss=values.pop("loss", None),
                metrics=values,
                resamples=resamples,
                newer_follows=self._newer_follows,
                device=before.device,
                threads=before.threads,
                monotonic_s=now_s,
                wall_s=time.time(),
            )
        )

    def display(self) -> Display:
        """Return the display for the progress of a loop."""
        return self.trainings or choose_display()

    def batch_source(self, number: int) -> BatchSource:
        """Return the source of the batches of the script's loop ``number``."""
        if self.role is not None:
            return self.role
        if number == 0 and is_worker():
            from .parameter_server.worker import TrainingWorker

            self.worker = worker = TrainingWorker.from_environment()
            return worker
        return SingleProcess()

    def gpu_share(self) -> GpuShare | None:
        """Return the share of the GPUs' time, which all loops of this process keep; ``None`` for whole GPUs or none."""
        if self._gpu_share is None:
            self._gpu_share = GpuShare.from_environment(self.clock, lambda: self.terminating)
        return self._gpu_share

    def skip_exit_gc(self) -> None:
        """Skip garbage collection when a job exits: with torch loaded, it takes almost a second."""
        if run_by_paceline():
            atexit.register(_exempt_from_gc)

    def handle_sigterm(self) -> None:
        """Handle SIGTERM from now on, unless the training code has its own handler."""
        if threading.current_thread() is not threading.main_thread() or self._handler_pid == os.getpid():
            return
        if signal.getsignal(signal.SIGTERM) in (signal.SIG_DFL, self._on_sigterm):
            self._handler_before = signal.signal(signal.SIGTERM, self._on_sigterm)
            self._handler_pid = os.getpid()

    def restore_sigterm(self) -> None:
        """Restore the previous SIGTERM handler, except in a job: a container's first process has no default action."""
        if self._handler_pid == os.getpid() and not run_by_paceline():
            if signal.getsignal(signal.SIGTERM) == self._on_sigterm:  # the training code may have set another since
                signal.signal(signal.SIGTERM, self._handler_before)
            self._handler_pid = None

    def exit_terminated(self) -> NoReturn:
        """End this process after a SIGTERM, also from another thread, which ``SystemExit`` alone would end."""
        if threading.current_thread() is not threading.main_thread():
            self.loop = None
            os.kill(os.getpid(), signal.SIGTERM)
        raise SystemExit(EXIT_TERMINATED)

    def exit_outside(self) -> None:
        """End this process as soon as the code that is running would not drop the exception."""
        if threading.current_thread() is not threading.main_thread():
            os.kill(os.getpid(), signal.SIGTERM)
            return
        if not threading.main_thread().is_alive():  # the process is exiting: let the exit functions run
            return

        def exit_if_outside(frame: FrameType, event: str, argument: Any) -> None:
            if not _drops_exceptions(frame):
                sys.setprofile(None)
                raise SystemExit(EXIT_TERMINATED)

        sys.setprofile(exit_if_outside)  # called whenever a function begins or ends

    def _repeat_dropped_exit(self) -> None:
        """From now on, exit later if Python drops ``SystemExit``, as in a finalizer or a function that C code calls."""
        hook = sys.unraisablehook

        def exit_again(dropped: Any) -> None:
            if isinstance(dropped.exc_value, SystemExit) and dropped.exc_value.code == EXIT_TERMINATED:
                self.exit_outside()
            else:
                hook(dropped)

        sys.unraisablehook = exit_again

    def _on_sigterm(self, signum: int, frame: FrameType | None) -> None:
        if os.getpid() != self._handler_pid:  # in a forked child process: apply the default action
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
            return
        self._repeat_dropped_exit()
        if self.loop is not None and (self.checkpoint is not None or self.worker is not None):
            if rank():
                ranks.end_after_rank_0()
                return
            atexit.register(ranks.announce_end)
            self.terminating = True
            self.loop.check_now()
            if self.worker is not None and self.worker.waiting:  # the worker waits for a batch, or for a lost server
                raise SystemExit(EXIT_TERMINATED)
        elif self.loop is None and _drops_exceptions(frame):
            self.exit_outside()
        else:
            raise SystemExit(EXIT_TERMINATED)


def _drops_exceptions(frame: FrameType | None) -> bool:
    """Return whether Python drops an exception that is raised now.

    It does so in a generator that a ``break`` closes, here that of a loop, and in a function that a C library calls:
    XGBoost's library calls such functions while it builds a matrix.
    """
    while frame is not None:
        if str(frame.f_globals.get("__name__")).startswith((f"{__package__}.", "xgboost.core")):
            return True
        frame = frame.f_back
    return False


def _call_at_exit(function: Callable[[], None]) -> None:
    """Call ``function`` when this process exits, also one of ``multiprocessing``, which skips ``atexit``."""
    atexit.register(function)
    multiprocessing = sys.modules.get("multiprocessing")
    if multiprocessing is not None and multiprocessing.parent_process() is not None:
        from multiprocessing import util

        util.Finalize(None, function, exitpriority=0)


def _exempt_from_gc() -> None:
    """Exempt all objects from garbage collection, and flush open files as garbage collection would."""
    for item in gc.get_objects():
        if issubclass(type(item), io.IOBase):
            with contextlib.suppress(Exception):
                item.flush()
    gc.freeze()


current = Session()


def report(**values: Any) -> None:
    """Report the loss and any metrics for the progress display and for the run's web pages.

    Inside a ``track`` loop, the next progress line contains the values. A call in every batch is cheap: the loop writes
    at most five lines per second and reads a tensor only when it writes a line. Outside a loop, for example in an
    evaluation script, the call writes a separate line. All later lines contain the newest value of each name.
    The line names those that are NaN or infinite. An evaluation fails if its metric is one of these.

    Parameters
    ----------
    **values:
        Numbers, tensors with one element, or results of ``resampled``. ``loss`` is the training loss; all other names
        are metrics.

    Raises
    ------
    ValueError
        If a value is not a single number, for example ``True``.

    Examples
    --------
    >>> from paceline.train import track
    >>> for batch in track([1, 2, 3]):
    ...     report(loss=1 / batch)
    """
    current.report(values)


def stop_early() -> None:
    """End the ``track`` loop after this batch. The last progress line reports 100 %.

    The loop's body still runs to its end for this batch, unless a ``break`` follows the call.

    Raises
    ------
    RuntimeError
        Outside a ``track`` loop.

    Examples
    --------
    >>> from paceline.train import track
    >>> seen = []
    >>> for batch in track(range(100)):
    ...     seen.append(batch)
    ...     if batch == 2:
    ...         stop_early()
    >>> seen
    [0, 1, 2]
    """
    if current.loop is None:
        raise RuntimeError("stop_early() was called outside a `for ... in track(...)` loop")
    current.loop.stop_early()
