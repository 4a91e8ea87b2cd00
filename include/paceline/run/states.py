"""The states of a training's life, as a table: what may follow what, who causes it, and when.

The control loop goes through them and publishes the one it is in; ``docs/architecture.md`` shows the table.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from paceline.contract import State

Cause = Literal["task", "job", "arbiter", "engine", "user", "airflow"]


class Transition(NamedTuple):
    """One row: from a state, ``None`` for the beginning of a try, to the next."""

    before: State | None
    after: State
    by: Cause
    when: str


def _of_each(befores: tuple[State, ...], after: State, by: Cause, when: str) -> tuple[Transition, ...]:
    return tuple(Transition(before, after, by, when) for before in befores)


TRANSITIONS: tuple[Transition, ...] = (
    Transition(None, "waiting", "task", "an arbiter has its devices and has given it none yet"),
    Transition(None, "starting", "task", "its job is started, or one of an earlier try is taken up"),
    Transition("waiting", "starting", "arbiter", "it is given devices"),
    Transition("starting", "training", "job", "the first report comes"),
    Transition("training", "starting", "engine", "the engine took the job down and is back: it is started again"),
    Transition("finishing", "starting", "engine", "as from training"),
    Transition("starting", "paused", "arbiter", "others need its devices: it is stopped, its checkpoint kept"),
    Transition("training", "paused", "arbiter", "as from starting"),
    Transition("paused", "starting", "arbiter", "it is given devices again"),
    Transition("training", "finishing", "job", "the last batch is done"),
    Transition("finishing", "training", "job", "there are more batches than it said"),
    *_of_each(("starting", "training", "finishing"), "finished", "job", "it ends with exit code 0, all batches done"),
    *_of_each(("starting", "training", "finishing"), "failed", "job", "it ends in any other way, or is gone"),
    *_of_each(
        ("waiting", "starting", "training"), "failed", "user", 'the deadline cannot be met, on_infeasible="fail"'
    ),
    *_of_each(
        ("waiting", "starting", "training", "paused", "finishing"),
        "failed",
        "airflow",
        "the task is cleared or marked: the job is removed",
    ),
    *_of_each(
        ("starting", "training", "paused", "finishing"),
        "detached",
        "airflow",
        "its process has to go, and the task has not: the job goes on, or is stopped with its checkpoint",
    ),
)
_ALLOWED = {(one.before, one.after, one.by) for one in TRANSITIONS}


class Course:
    """The state that a training is in, for as long as one process steers it.

    >>> course = Course()
    >>> course.becomes("starting", by="task")
    >>> course.becomes("finishing", by="job")
    Traceback (most recent call last):
    ValueError: a training that is 'starting' does not become 'finishing' by the job
    >>> course.state
    'starting'
    """

    def __init__(self) -> None:
        self.state: State | None = None

    def becomes(self, after: State, by: Cause) -> None:
        """Go on to ``after``; nothing happens to a training that is there already."""
        if after == self.state:
            return
        if (self.state, after, by) not in _ALLOWED:
            raise ValueError(f"a training that is {self.state!r} does not become {after!r} by the {by}")
        self.state = after
