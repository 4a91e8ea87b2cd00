"""What a kind of device does: measured at a few points, learned, kept without pickle, known to be stale when it is.

:class:`DeviceProfile` holds the functions of Deep-Edge for one kind; :class:`ProfileEstimates` answers a scheduler's
questions with them.
"""

from __future__ import annotations

from paceline.profiles.device import DeviceProfile, NoProfileError, Origin
from paceline.profiles.estimates import ProfileEstimates
from paceline.profiles.functions import FUNCTIONS, Function, execution
from paceline.profiles.learn import Learned, learn
from paceline.profiles.points import Axes, choose_more, first_points

__all__ = [
    "Axes",
    "DeviceProfile",
    "FUNCTIONS",
    "Function",
    "Learned",
    "NoProfileError",
    "Origin",
    "ProfileEstimates",
    "choose_more",
    "execution",
    "first_points",
    "learn",
]
