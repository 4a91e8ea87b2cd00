"""The libraries of the benchmark, their simulated counterparts, and the sizes of their trainings."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

from paceline.control import PastRun
from paceline.testing.plant import Plant, amdahl

EPOCHS = 5
_SERIAL = 0.2  # serial fraction of a simulated step
_SAVE_S = 0.1  # duration of the final checkpoint, which is part of the tail


@dataclass(frozen=True)
class Case:
    """A library and the times of its training in ``train.py``, in seconds, for the simulation.

    The times are the shortest of several on a busy machine with two cores.

    Parameters
    ----------
    name:
        Name of the library in ``train.py``.
    title:
        Name of the library in the table.
    modules:
        Modules that must be installed.
    step_s:
        Duration of a step on one core.
    startup_s, tail_s:
        Time before the first step and after the last.
    pause_s:
        Duration of the validation after each epoch; 0 for a library without epochs.
    adapts_threads:
        Whether the number of threads can follow the allocation.
    """

    name: str
    title: str
    modules: tuple[str, ...]
    step_s: float
    startup_s: float
    tail_s: float
    pause_s: float = 0.0
    adapts_threads: bool = True

    @property
    def is_installed(self) -> bool:
        """Whether this Python has all modules."""
        return all(find_spec(module) is not None for module in self.modules)


CASES = {
    case.name: case
    for case in (
        Case("xgboost", "XGBoost", ("xgboost",), 0.05, 4.0, 0.4),
        Case("lightgbm", "LightGBM", ("lightgbm",), 0.08, 8.0, 0.4),
        Case("sklearn", "scikit-learn", ("sklearn", "skops"), 0.085, 6.0, 0.9, 0.1, adapts_threads=False),
        Case("lightning", "PyTorch Lightning", ("torch", "lightning"), 0.06, 6.0, 1.0, 0.2),
        Case("huggingface", "Hugging Face Trainer", ("torch", "transformers", "accelerate"), 0.095, 6.0, 0.6, 0.3),
        Case("keras", "Keras", ("torch", "keras"), 0.045, 6.0, 0.6, 0.2),
        Case("accelerate", "Accelerate, with `track`", ("torch", "accelerate"), 0.045, 3.0, 0.8, 0.3),
        Case("torch", "torch, with `track`", ("torch",), 0.045, 4.0, 0.7, 0.2),
        Case("epochs", "torch, with `track_epochs`", ("torch",), 0.045, 4.0, 0.7, 0.2),
        Case("once", "torch, one epoch", ("torch",), 0.045, 4.0, 0.7, 0.2),
    )
}


def step_count(shortest_s: float, past: PastRun) -> int:
    """Return the number of steps, a multiple of ``EPOCHS``, with which a training takes ``shortest_s`` on all cores.

    ``past`` is the calibration on all cores.

    >>> past = PastRun(60, startup_s=3.0, tail_s=1.0, devices=2.0, batches_per_s=20.0, exponent=1.0, pauses_s=0.0)
    >>> step_count(14.0, past)
    200
    """
    left_s = shortest_s - past.startup_s - past.tail_s - EPOCHS * (past.pause_s or 0.0)
    return max(int(left_s * past.batches_per_s) // EPOCHS, 2) * EPOCHS


def predicted_s(steps: int, past: PastRun) -> float:
    """Return the predicted duration of a training on all cores, from the calibration ``past``.

    >>> past = PastRun(60, startup_s=3.0, tail_s=1.0, devices=2.0, batches_per_s=20.0, exponent=1.0, pauses_s=0.0)
    >>> predicted_s(200, past)
    14.0
    """
    return past.startup_s + steps / past.batches_per_s + EPOCHS * (past.pause_s or 0.0) + past.tail_s


def plant(case: Case, cores: float, shortest_s: float) -> Plant:
    """Return the simulated training of a library, which takes about ``shortest_s`` on all cores.

    >>> made = plant(CASES["torch"], cores=2.0, shortest_s=30.0)
    >>> made.epochs, round(made.shortest_s(2.0))
    (5, 30)
    """
    speedup, epochs = amdahl(_SERIAL), EPOCHS if case.pause_s else 1
    left_s = shortest_s - case.startup_s - case.tail_s - epochs * case.pause_s
    steps = max(int(left_s * speedup(cores) / case.step_s) // EPOCHS, 2) * EPOCHS
    return Plant(
        steps,
        case.step_s,
        speedup,
        startup_s=case.startup_s,
        tail_s=case.tail_s,
        save_s=_SAVE_S,
        epochs=epochs,
        pause_s=case.pause_s,
        noise=0.1,
    )
