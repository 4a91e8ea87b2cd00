"""The states of a training job and the table of their transitions, with causes and conditions.

The control loop publishes the current state; ``docs/architecture.md`` shows the table.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from paceline.contract import State

Cause = Literal["task", "job", "arbiter", "engine", "user", "airflow"]


class Transition(NamedTuple):
    """A row of the transition table; ``before`` is ``None`` at the beginning of a try."""

    before: State | None
    after: State
    by: Cause
    when: str


def _rows(states: tuple[State, ...], after: State, by: Cause, when: str) -> tuple[Transition, ...]:
    return tuple(Transition(before, after, by, when) for before in states)


TRANSITIONS: tuple[Transition, ...] = (
    Transition(None, "waiting", "task", "an arbiter allocates the devices and has not granted any yet"),
    Transition(None, "starting", "task", "the try starts the job, or takes over the job of an earlier try"),
    Transition("waiting", "starting", "arbiter", "the arbiter grants devices"),
    Transition("starting", "training", "job", "the first report arrives"),
    Transition("training", "starting", "engine", "an engine outage stopped the job: the job is restarted"),
    Transition("finishing", "starting", "engine", "an engine outage stopped the job: the job is restarted"),
    Transition("starting", "preempted", "arbiter", "the arbiter preempts the job, which keeps its checkpoint"),
    Transition("training", "preempted", "arbiter", "the arbiter preempts the job, which keeps its checkpoint"),
    Transition("preempted", "starting", "arbiter", "the arbiter grants devices again"),
    Transition("training", "finishing", "job", "the last batch is done"),
    Transition("finishing", "training", "job", "the job reports a larger number of batches than before"),
    *_rows(("starting", "training", "finishing"), "finished", "job", "the job ends with exit code 0"),
    *_rows(("starting", "training", "finishing"), "failed", "job", "the job ends in any other way, or is removed"),
    *_rows(("waiting", "starting", "training"), "failed", "user", 'the deadline cannot be met, on_infeasible="fail"'),
    *_rows(
        ("waiting", "starting", "training", "preempted", "finishing"),
        "failed",
        "airflow",
        "a user clears or marks the task: the job is removed",
    ),
    *_rows(
        ("starting", "training", "preempted", "finishing"),
        "detached",
        "airflow",
        "the worker process ends but the task does not: the job continues, or is stopped and keeps its checkpoint",
    ),
)
_ALLOWED = {(row.before, row.after, row.by) for row in TRANSITIONS}


class Lifecycle:
    """The state of a training job during one try.

    >>> lifecycle = Lifecycle()
    >>> lifecycle.enter("starting", by="task")
    >>> lifecycle.enter("finishing", by="job")
    Traceback (most recent call last):
    ValueError: no transition from 'starting' to 'finishing' by the job
    >>> lifecycle.state
    'starting'
    """

    def __init__(self) -> None:
        self.state: State | None = None

    def enter(self, after: State, by: Cause) -> None:
        """Change the state to ``after``; do nothing if ``after`` is the current state."""
        if after == self.state:
            return
        if (self.state, after, by) not in _ALLOWED:
            raise ValueError(f"no transition from {self.state!r} to {after!r} by the {by}")
        self.state = after
