"""``track_epochs``: a loop over epochs whose body contains the loop over batches, as most training code is written.

The inner loops ``track(loader)`` are passes of one ``Loop``, which counts the batches of all epochs. On a restart, the
epochs that are done are skipped with their bodies; the body of the interrupted epoch runs again up to the inner loop,
which then restores the state of the checkpoint.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from dataclasses import replace
from numbers import Integral
from typing import Any

from . import _session
from ._alone import SingleProcess
from ._enumerated import warn_if_counted
from ._loop import Loop
from ._values import bad_value, log, refuse, whole_number
from .job import is_worker
from .pacing.monitor import Converged, Monitor
from .progress import Progress
from .saving import data, rng
from .saving.checkpoint import Checkpoint, Position, Resume


class Epochs:
    """The loop over epochs that ``track_epochs`` returns. Iterate over it only once."""

    def __init__(self, epochs: int | Sequence[int], until: Converged | None) -> None:
        accepted = "a whole number of at least 1, or the numbers of the epochs, such as range(1, 11)"
        if isinstance(epochs, Integral):
            epochs = range(whole_number("epochs", epochs))
        elif not isinstance(epochs, Sequence) or not epochs or not all(map(_is_whole, epochs)):
            raise bad_value("epochs", epochs, accepted)
        if until is not None and not isinstance(until, Converged):
            raise bad_value("until", until, 'a paceline.train.Converged, such as Converged("accuracy")')
        self._numbers = epochs
        self._until = until
        self._loop: Loop[Any] | None = None
        self._resume: Resume | None = None  # until the interrupted epoch has reached its inner loop
        self._loaders_before: Collection[Any] = ()  # created before the loop over epochs
        self._start: dict[str, Any] = {}  # states of the global random generators at the start of the epoch
        # The batches of this epoch. A `break` in the body drops its own reference, which ends them.
        self._batches: weakref.ref[Generator[Any]] | None = None
        self._entered = self._iterated = False

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[int]:
        session = _session.current
        if self._iterated:
            raise RuntimeError("this track_epochs(...) loop has already run: call track_epochs() again")
        if session.epochs is not None or session.loop is not None:
            raise RuntimeError("track_epochs() was called within another loop: only one loop can show the progress")
        self._iterated = True
        return warn_if_counted(self._run(session), "track_epochs")

    def track(self, loader: Iterable[Any], **options: Any) -> Loop[Any] | None:
        """Return the loop over the batches of this epoch; ``None`` if this epoch has one already."""
        if self._entered:
            return None
        if (epochs := options.pop("epochs")) != 1:
            raise bad_value("epochs", epochs, "no argument here, because track_epochs(...) has the number of epochs")
        if (until := options.pop("until")) is not None:
            raise bad_value("until", until, "no argument here: pass it to track_epochs(...)")
        self._entered = True
        if self._loop is not None:
            self._loop.replace_loader(loader)
            return self._loop
        if options["total"] is not None:  # of one epoch
            options["total"] = whole_number("total", options["total"]) * len(self._numbers)
        self._loop = loop = Loop(loader, epochs=len(self._numbers), until=self._until, within_epochs=True, **options)
        loop.restore_position(_session.current)
        return loop

    def owns(self, loop: object) -> bool:
        """Return whether ``loop`` is the loop over the batches of these epochs."""
        return loop is self._loop

    def batches(self, loop: Loop[Any]) -> Iterator[Any]:
        """Return the batches of this epoch, from the position of the checkpoint on."""
        if self._batches is not None:
            raise RuntimeError(
                "the loop over batches of this epoch has already run: call track() again for another loop"
            )
        batches = self._read(loop)
        self._batches = weakref.ref(batches)
        return batches

    def _read(self, loop: Loop[Any]) -> Generator[Any]:
        session = _session.current
        resume, self._resume = self._resume, None
        completed = False
        try:
            source = loop.source or loop.open(session)
            assert isinstance(source, SingleProcess)  # checked in _run
            if resume is not None and not resume.position.batch:
                resume = self._at_start(resume, loop.loader)
            loop.begin_pass()
            batches = source.begin_epoch(resume, self._numbers[loop.epoch])
            source.epoch_start["outer"] = self._start
            if resume is not None and resume.position.batch:
                self._undo_changes(session, resume)
            yield from loop.run_pass(session, batches)
            completed = True
        except GeneratorExit:
            loop.done += 1  # the training code has left the epoch within this batch
            completed = True
            raise
        finally:
            if not completed:  # an error, or the end after SIGTERM; the training code may go on with the next epoch
                loop.close(session)
                loop.source = None

    def _at_start(self, resume: Resume, loader: Iterable[Any]) -> Resume:
        """Return the point to resume from at the start of an epoch whose body has drawn numbers from the right state.

        The checkpoint contains the generator of the loader of the epoch before: it is restored if all epochs share it.
        """
        now = data.snapshot(loader)
        shared = loader in self._loaders_before or not data.is_torch_loader(loader)
        own = resume.epoch_start["own"] if shared else now["own"]
        return replace(resume, epoch_start={"global": now["global"], "own": own})

    def _undo_changes(self, session: _session.Session, resume: Resume) -> None:
        """Restore the state again: the body has changed it before its inner loop, as it did before the checkpoint."""
        if isinstance(session.checkpoint, Checkpoint):
            session.checkpoint.restore_objects_again()
        rng.restore(resume.now["global"])

    def _run(self, session: _session.Session) -> Iterator[int]:
        if session.role is not None or is_worker():
            accepted = "one loop, track(loader, epochs=n), to train on several devices or machines"
            refuse(bad_value("track_epochs", "a loop over epochs", accepted))
        number = session.number_loop()
        resume = session.checkpoint.resume if session.checkpoint is not None else None
        epoch = 0
        if resume is not None and resume.position.loop >= number:
            if resume.position.loop > number or self._had_ended(resume.position):
                session.loops_started += 1
                if resume.position.loop == number:
                    rng.restore(resume.now["global"])
                    log(f"training had ended before the checkpoint was written ({resume.position.done} batches done)")
                    self._show_ended(session, resume.position)
                return
            self._resume, epoch = resume, resume.position.epoch
            if epoch >= len(self):
                accepted = f"at least {epoch + 1} epochs as in the checkpoint, or another checkpoint folder"
                raise bad_value("epochs", len(self), accepted)
            self._loaders_before = data.torch_loaders()
            rng.restore(resume.epoch_start.get("outer", resume.epoch_start["global"]))
            if number and isinstance(session.checkpoint, Checkpoint):
                session.checkpoint.restore_objects_again()  # the code since checkpoint() has changed them
        session.epochs = self
        left = False
        try:
            while self._loop is None or not self._loop.over:
                self._start, self._entered, self._batches = rng.capture(), False, None
                yield self._numbers[epoch]
                if self._batches is not None and (batches := self._batches()) is not None:
                    batches.close()  # counts the last batch, if the body has left its loop and holds the iterator
                if not self._entered or self._loop is None:
                    accepted = "a loop over track(loader) in the body of track_epochs()"
                    raise bad_value("track_epochs", f"no batches in epoch {self._numbers[epoch]}", accepted)
                self._loop.end_pass(session)
                epoch = self._loop.epoch
            self._loop.finish(session)
        except GeneratorExit:
            left = True
            if self._loop is not None and self._loop.stopped:
                self._loop.finish(session)
            raise
        finally:
            session.epochs = None
            if self._loop is not None:
                self._loop.close(session)
            if left and session.terminating:
                session.exit_outside()
        if session.terminating:
            session.exit_terminated()

    def _show_ended(self, session: _session.Session, position: Position) -> None:
        """Show that the training is done; the code after it may take long."""
        display, values, now_s = session.display(), session.reported_values(), session.clock()
        ended = Progress(
            done=position.done,
            total=max(position.done, 1),
            epoch=len(self) - 1,
            epochs=len(self),
            loss=values.pop("loss", None),
            metrics=values,
            monotonic_s=now_s,
            wall_s=time.time(),
        )
        for event in ("start", "finish"):
            display.show(replace(ended, event=event))
        display.close()

    def _had_ended(self, position: Position) -> bool:
        epochs = len(self._numbers)
        if self._until is not None:
            monitor = Monitor(self._until, epochs)
            monitor.restore(position.curve)
            epochs = max(monitor.epochs, position.epoch)
        return position.ended and (position.stopped or position.epoch >= epochs)


def _is_whole(number: object) -> bool:
    return isinstance(number, Integral) and not isinstance(number, bool)


def track_epochs(epochs: int | Sequence[int], *, until: Converged | None = None) -> Epochs:
    """Loop over epochs, with a loop ``for batch in track(loader)`` in the body.

    Training code keeps its form: work at the start and at the end of an epoch stays where it is. After a restart, the
    epochs that are done are skipped whole. The interrupted epoch runs again up to the loop over batches, with the same
    random numbers; there the state of the checkpoint is restored, and the loop continues behind the last batch.
    Progress is the fraction of the batches of all epochs.

    Parameters
    ----------
    epochs:
        Number of epochs, counted from 0, or their numbers, such as ``range(1, 11)``.
    until:
        Ends training when a metric that is reported in each epoch has levelled off; see :class:`Converged`.

    Returns
    -------
    Epochs
        An iterable of the numbers of the epochs.

    Raises
    ------
    ValueError
        If ``epochs`` or ``until`` is invalid, if an epoch has no loop ``track(loader)``, or with ``data_parallel`` and
        in a fleet, which need ``track(loader, epochs=n)``.
    RuntimeError
        Within another loop.

    Examples
    --------
    >>> from paceline.train import track, track_epochs
    >>> for epoch in track_epochs(range(1, 3)):
    ...     for batch in track(["a", "b"]):
    ...         print(epoch, batch)
    ...     print("validate")
    1 a
    1 b
    validate
    2 a
    2 b
    validate
    """
    return Epochs(epochs, until)
