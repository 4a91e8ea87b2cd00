"""The lifecycle of a training run: its states, its control loop, and the state that the task stores between tries.

Start with :class:`Training`; :class:`PaceLoop` is the control loop of one job. ``docs/architecture.md`` has a diagram.
"""

from paceline.run._handover import ControlElsewhereError, Handover, Surroundings
from paceline.run._history import History
from paceline.run._live import Exchange, JsonText, LiveState, LiveValues, MemoryState, RemoteState
from paceline.run._loop import PaceLoop
from paceline.run._queue import WaitElsewhereError, WaitingJob
from paceline.run._training import Training

__all__ = [
    "ControlElsewhereError",
    "Exchange",
    "Handover",
    "History",
    "JsonText",
    "LiveState",
    "LiveValues",
    "MemoryState",
    "PaceLoop",
    "RemoteState",
    "Surroundings",
    "Training",
    "WaitElsewhereError",
    "WaitingJob",
]
