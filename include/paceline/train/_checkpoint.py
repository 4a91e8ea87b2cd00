"""``checkpoint``, which names the objects that the loop saves and restores. Called by training code, once per job."""

from __future__ import annotations

import os
from typing import Any

from . import _session
from ._values import log
from .job import is_follower, is_worker, run_by_paceline
from .saving import first_states
from .saving.checkpoint import Checkpoint, Saver, check_every_s, check_parts, checkpoint_folder
from .saving.steps import OptimizerSteps


def checkpoint(*, path: str | os.PathLike[str] | None = None, every_s: float | None = None, **parts: Any) -> bool:
    """Save the state of training and resume from it. Call this function once, right before the ``track`` loop.

    If there is a checkpoint, this call restores the objects; the loop restores the random number generators and the
    position in the data. ``track`` saves between two batches when a checkpoint is due, after the last batch, and on
    SIGTERM (then the process exits with code 143).

    If this function is called inside the loop, ``track`` saves checkpoints but cannot restore them.

    Parameters
    ----------
    path:
        Folder for the checkpoint files. Default: the environment variable ``PACELINE_CHECKPOINT``, which Paceline sets
        in its jobs; without a folder, ``track`` saves no checkpoints.
    every_s:
        Seconds between two checkpoints; 0 saves after every batch. By default, the interval is 5 to 60 s, so that
        saving takes at most 2 % of the time if possible.
    **parts:
        The objects to save, by name, such as the model, the optimizer, a learning rate scheduler, a gradient scaler.
        Each object needs ``state_dict()`` and ``load_state_dict()``.

    Returns
    -------
    bool
        Whether a checkpoint was restored.

    Raises
    ------
    ValueError
        If an object cannot be saved or restored or differs from the checkpoint, or if the folder is not writable.
    RuntimeError
        If there is a checkpoint to restore but the loop has already started, or if a job calls this function again for
        another loop with the same folder, or for other objects of the same loop.
    """
    session, checked = _session.current, check_parts(parts)
    interval_s = check_every_s(every_s)
    session.parts = checked
    folder = checkpoint_folder(path)
    if folder is None or is_follower() or is_worker():
        return False
    loop, registered = session.loop, session.checkpoint
    if loop is not None:
        same = registered is not None and registered.folder == folder and _same_parts(registered, checked)
        if same:
            return False
        created = Checkpoint(checked, folder, interval_s, session.clock)
        if (newest := created.load_newest()) is not None:
            raise RuntimeError(
                f"checkpoint() is too late to restore {newest[1]}: call it before the `for ... in track(...)` loop"
            )
        log("checkpoint() inside the loop saves but cannot restore: call it before the loop")
        session.checkpoint = created
        loop.check_now()
        return False
    has_trained = registered is not None and registered.folder == folder and session.loops_started > session.first_loop
    if has_trained and run_by_paceline():  # in a notebook, a user may repeat the call to continue training
        raise RuntimeError(
            f"checkpoint() would restore the end of the previous loop from {folder}: "
            "call it once, with the objects of all loops, or pass another path"
        )
    created = Checkpoint(checked, folder, interval_s, session.clock)
    restored = created.restore()
    register(created)
    return restored


def register(saver: Saver) -> None:
    """Let the next loop save with ``saver`` and resume from the point that ``saver`` has restored.

    Raises ``RuntimeError`` if a job has registered other objects for this loop, which would not be saved.
    """
    session = _session.current
    first_states.store_for_restart()
    before, is_unused = session.checkpoint, session.loops_started == session.first_loop
    repeats = before is not None and isinstance(saver, Checkpoint) and _same_parts(before, saver.parts)
    if before is not None and is_unused and not repeats and run_by_paceline():
        raise RuntimeError(
            "checkpoint() was called twice before the loop, which saves only the objects of the last call: "
            "call it once, with all objects"
        )
    session.checkpoint = saver
    session.first_loop = session.loops_started
    session.single_epochs.clear()
    if isinstance(saver, Checkpoint):
        saver.steps = OptimizerSteps(saver.parts.values(), session.batches_done)
    if saver.resume is not None:
        session.restore_reported(saver.resume.reported)
    session.handle_sigterm()


def _same_parts(registered: Saver, parts: dict[str, Any]) -> bool:
    before = registered.parts if isinstance(registered, Checkpoint) else {}
    return before.keys() == parts.keys() and all(before[name] is part for name, part in parts.items())
