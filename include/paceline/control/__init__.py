"""Deadline control of one training job: setpoint, speed, controllers, forecast. No clock, no I/O.

Start with :class:`DeadlineController`; :class:`PaperController` is the controller of DECOR-NN as published.
"""

from paceline.control._budget import BudgetController
from paceline.control._controller import Controller, Decision, Observation, target_end_s
from paceline.control._deadline import DeadlineController
from paceline.control._limits import CPU_QUANTUM, GPU_QUANTUM, Limits
from paceline.control._make import CONTROLLERS, make_controller
from paceline.control._paper import PAPER_GAINS, PaperController
from paceline.control._past import PastRun
from paceline.control._pi import Gains, PIController
from paceline.control._remaining import RemainingWork
from paceline.control._setpoint import Ramp
from paceline.control._speed import SpeedModel
from paceline.control._tail import LATE_WEIGHT, PastTail, TailForecast, TailModel

__all__ = [
    "BudgetController",
    "CONTROLLERS",
    "CPU_QUANTUM",
    "Controller",
    "DeadlineController",
    "Decision",
    "GPU_QUANTUM",
    "Gains",
    "LATE_WEIGHT",
    "Limits",
    "Observation",
    "RemainingWork",
    "PAPER_GAINS",
    "PIController",
    "PaperController",
    "PastRun",
    "PastTail",
    "Ramp",
    "SpeedModel",
    "TailForecast",
    "TailModel",
    "target_end_s",
    "make_controller",
]
