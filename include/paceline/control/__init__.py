"""Deadline control of one training job: setpoint, controller, forecast. Pure: no clock, no I/O.

Start at :class:`DeadlineController`; :class:`PIController` is the controller of DECOR-NN as published.
"""

from paceline.control.deadline import DeadlineController, Decision
from paceline.control.limits import CPU_QUANTUM, GPU_QUANTUM, Limits
from paceline.control.pi import Gains, PIController
from paceline.control.setpoint import Ramp
from paceline.control.throughput import Throughput

__all__ = [
    "CPU_QUANTUM",
    "DeadlineController",
    "Decision",
    "GPU_QUANTUM",
    "Gains",
    "Limits",
    "PIController",
    "Ramp",
    "Throughput",
]
