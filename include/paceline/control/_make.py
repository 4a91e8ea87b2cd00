"""Creates controllers by name, for the training operator and the benchmarks."""

from __future__ import annotations

from paceline.control._controller import Controller
from paceline.control._deadline import DeadlineController
from paceline.control._limits import GPU_QUANTUM, Limits
from paceline.control._paper import PAPER_GAINS, PaperController
from paceline.control._past import PastRun
from paceline.control._pi import Gains
from paceline.control._tail import TailModel
from paceline.errors import InvalidInputError

CONTROLLERS = ("default", "paper")
WHOLE_DEVICE_RESIZE_S = 0.5


def make_controller(
    name: str | Gains,
    limits: Limits,
    deadline_s: float,
    *,
    alpha: float = 1.0,
    period_s: float = 1.0,
    past: PastRun | None = None,
    tail: TailModel | None = None,
) -> Controller:
    """Return a new controller called ``name``, one of ``CONTROLLERS``, or the paper's controller with these gains.

    ``past`` and ``tail`` apply to ``"default"`` (:class:`~paceline.control.DeadlineController`).

    >>> make_controller("paper", Limits(0.1, 2.0), 60.0).start(0.0)
    0.1
    >>> make_controller("fuzzy", Limits(0.1, 2.0), 60.0)
    Traceback (most recent call last):
    paceline.errors.InvalidInputError: controller: got 'fuzzy', expected one of default, paper
    """
    if name == "default":
        # Each whole device has a process that joins or leaves between two batches, which interrupts training.
        known_s = past.resize_s if past is not None else None
        resize_s = (known_s or WHOLE_DEVICE_RESIZE_S) if limits.quantum >= GPU_QUANTUM else 0.0
        return DeadlineController(
            limits, deadline_s, alpha=alpha, period_s=period_s, past=past, tail=tail, resize_s=resize_s
        )
    gains = PAPER_GAINS if name == "paper" else name
    if isinstance(gains, Gains):
        return PaperController(limits, deadline_s, alpha=alpha, period_s=period_s, gains=gains)
    raise InvalidInputError("controller", name, "one of " + ", ".join(CONTROLLERS))
