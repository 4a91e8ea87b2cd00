"""What the loops, reports and checkpoints of one process know of each other, and its answer to SIGTERM.

``checkpoint``, ``report`` and ``stop_early`` are called by training code; ``_loop`` asks for the rest.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import math
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

from ._checkpoint import Checkpoint, Stateful, check_every_s, check_parts, folder_for
from ._display import Display, choose_display
from ._follower import Follower
from ._values import deferred_number, say
from .job import EXIT_TERMINATED, is_worker, run_by_paceline
from .progress import Progress

if TYPE_CHECKING:
    from ._lead import Lead
    from ._protocols import BatchLoop
    from .asynchronous.worker import TrainingWorker


class Session:
    """The training of this process. There is one, ``current``; tests make their own."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.loop: BatchLoop | None = None  # the one under way
        self.loops_begun = 0  # since the last checkpoint() outside of a loop
        self.last: Progress | None = None  # the newest that was shown
        self.checkpoint: Checkpoint | None = None
        self.parts: dict[str, Stateful] = {}  # what checkpoint() was given
        self.team: Lead | Follower | None = None  # since data_parallel()
        self.worker: TrainingWorker | None = None  # where there is a parameter server, since the loop began
        self.terminating = False
        self._values: dict[str, Callable[[], float]] = {}
        self._times: Counter[str] = Counter()
        self._display: Display | None = None
        self._next_report_s = float("-inf")
        self._report_waits = False
        self._handler_before: Any = None
        self._handler_pid: int | None = None

    def reported(self) -> dict[str, float]:
        """Everything reported so far, the newest value of each name."""
        return {name: value() for name, value in self._values.items()}

    def newest(self, name: str) -> tuple[int, float]:
        """How often something was reported in this process, and its newest value; NaN if never."""
        value = self._values.get(name)
        return self._times[name], math.nan if value is None else value()

    def put_back_reported(self, values: dict[str, float]) -> None:
        """Take what was reported before a restart as reported."""
        self._values = {name: deferred_number(name, value) for name, value in values.items()} | self._values

    def report(self, values: dict[str, Any]) -> None:
        """Keep values for the next line; outside of a loop, write one now or as soon as the rate allows."""
        for name, value in values.items():
            self._values[name] = deferred_number(name, value)
            self._times[name] += 1
        if self.loop is not None or not values:
            return
        now_s = self.clock()
        if now_s >= self._next_report_s:
            self._show_report(now_s)
        elif not self._report_waits:
            self._report_waits = True
            atexit.register(self.flush_report)

    def flush_report(self) -> None:
        """Write what the rate has held back."""
        if self._report_waits:
            self._show_report(self.clock())

    def _show_report(self, now_s: float) -> None:
        self._report_waits = False
        if self._display is None:
            self._display = choose_display()
        self._next_report_s = now_s + min(self._display.interval_s, 0.2)
        before = self.last or Progress(done=1, total=1)
        values = self.reported()
        self._display.show(
            Progress(
                done=before.done,
                total=before.total,
                epoch=before.epoch,
                epochs=before.epochs,
                event="report",
                loss=values.pop("loss", None),
                metrics=values,
                device=before.device,
                threads=before.threads,
                monotonic_s=now_s,
                wall_s=time.time(),
            )
        )

    def join_others(self) -> TrainingWorker | None:
        """This process's part in a training on several machines, if it has one."""
        if is_worker():
            from .asynchronous.worker import TrainingWorker

            self.worker = TrainingWorker.in_this_process()
        return self.worker

    def leave_quickly(self) -> None:
        """Let a job's process end without a search for garbage: among torch's objects that takes most of a second."""
        if run_by_paceline():
            atexit.register(_forgo_garbage)

    def listen(self) -> None:
        """Answer SIGTERM from now on, unless the training code answers it itself."""
        if threading.current_thread() is not threading.main_thread() or self._handler_pid == os.getpid():
            return
        if signal.getsignal(signal.SIGTERM) in (signal.SIG_DFL, self._on_sigterm):
            self._handler_before = signal.signal(signal.SIGTERM, self._on_sigterm)
            self._handler_pid = os.getpid()

    def stop_listening(self) -> None:
        """Give SIGTERM back after a loop. Inside a job it stays: the first process of a container has no default."""
        if self._handler_pid == os.getpid() and not run_by_paceline():
            signal.signal(signal.SIGTERM, self._handler_before)
            self._handler_pid = None

    def terminate_soon(self) -> None:
        """Answer a SIGTERM again, from a place where raising would be of no effect."""
        again = threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGTERM))
        again.daemon = True
        again.start()

    def _on_sigterm(self, signum: int, frame: FrameType | None) -> None:
        if os.getpid() != self._handler_pid:  # a process that was forked off and is to end as it would have
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
        elif self.loop is not None and (self.checkpoint is not None or self.worker is not None):
            self.terminating = True
            self.loop.look_now()
        elif self.loop is None and _in_loop(frame):
            self.terminate_soon()
        else:
            raise SystemExit(EXIT_TERMINATED)


def _in_loop(frame: FrameType | None) -> bool:
    """Whether the code of a loop runs. Python drops what is raised in a generator that is closed because of a break."""
    while frame is not None:
        if frame.f_globals.get("__name__") == f"{__package__}._loop":
            return True
        frame = frame.f_back
    return False


def _forgo_garbage() -> None:
    """Keep the interpreter from looking for garbage; files in it would have been written out."""
    for found in gc.get_objects():
        if issubclass(type(found), io.IOBase):
            with contextlib.suppress(Exception):
                found.flush()
    gc.freeze()


current = Session()


def report(**values: Any) -> None:
    """Report the loss and any metrics, for the progress display and for whoever watches the run.

    Inside of a ``track`` loop they leave with the next progress line (at most five a second), so calling it for every
    batch is cheap; a tensor is read only when the line is written. Outside of a loop, as in an evaluation script, a
    line of its own leaves. The newest value of each name stays in all later lines. NaN and infinity are left out.

    Parameters
    ----------
    **values:
        Numbers, or tensors with one element. ``loss`` is the training loss; all others are metrics.

    Raises
    ------
    ValueError
        If a value is not one number.

    Examples
    --------
    >>> from paceline.train import track
    >>> for batch in track([1, 2, 3]):
    ...     report(loss=1 / batch)
    """
    current.report(values)


def stop_early() -> None:
    """End the ``track`` loop after this batch: the total becomes what is done, and the last progress line says 100 %.

    The rest of the loop's body still runs; a ``break`` right after it is fine.

    Raises
    ------
    RuntimeError
        Outside of a ``track`` loop.

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
        raise RuntimeError("stop_early() is for the body of a `for ... in track(...)` loop, and none is under way")
    current.loop.stop_early()


def checkpoint(*, path: str | os.PathLike[str] | None = None, every_s: float | None = None, **parts: Any) -> bool:
    """Save and resume a training: call it once, right before the ``track`` loop.

    If there is a checkpoint, everything is put back: the parts now, the random number generators and the position in
    the data when the loop begins. From then on ``track`` saves between batches when it is due, at the end, and on
    SIGTERM (then the process exits with code 143).

    A call inside of the loop works for saving, but comes too late to restore.

    Parameters
    ----------
    path:
        Folder for the checkpoint files. Default: what the environment variable ``PACELINE_CHECKPOINT`` names, which
        Paceline sets in its jobs; without it nothing is saved.
    every_s:
        Seconds between two saves, 0 for every batch. Default: as often as 2 % of the time allows, 5 to 60 s apart.
    **parts:
        What to save, by name: objects with ``state_dict()`` and ``load_state_dict()``, such as the model, the
        optimizer, a learning rate scheduler, a gradient scaler.

    Returns
    -------
    bool
        Whether a checkpoint was restored.

    Raises
    ------
    ValueError
        If a part cannot be saved or restored, or does not fit the checkpoint; if the folder cannot be written to.
    RuntimeError
        If there is a checkpoint to restore, but the loop is already under way.
    """
    checked = check_parts(parts)
    interval_s = check_every_s(every_s)
    current.parts = checked
    folder = folder_for(path)
    if folder is None or isinstance(current.team, Follower) or is_worker():
        return False
    registered, loop = current.checkpoint, current.loop
    if loop is not None:
        same = registered is not None and registered.folder == folder and _same_parts(registered, checked)
        if same:
            return False
        made = Checkpoint(checked, folder, interval_s, current.clock)
        if (found := made.saved()) is not None:
            raise RuntimeError(
                f"checkpoint() came too late to restore {found[1]}: call it before the `for ... in track(...)` loop"
            )
        say("checkpoint() inside of the loop saves, but cannot restore: call it before the loop")
        current.checkpoint = made
        loop.look_now()
        return False
    made = Checkpoint(checked, folder, interval_s, current.clock)
    restored = made.restore()
    current.checkpoint = made
    current.loops_begun = 0
    if made.resume is not None:
        current.put_back_reported(made.resume.reported)
    current.listen()
    return restored


def _same_parts(registered: Checkpoint, parts: dict[str, Any]) -> bool:
    known = registered.parts
    return known.keys() == parts.keys() and all(known[name] is part for name, part in parts.items())
