"""What a kind of device does: measured at a few points, learned, kept without pickle, known to be stale when it is.

:class:`DeviceProfile` holds the functions of Deep-Edge for one kind; :class:`ProfileEstimates` answers a scheduler's
questions with them.
"""

from __future__ import annotations

from paceline.profile.device import DeviceProfile, NoProfileError, Origin
from paceline.profile.estimates import ProfileEstimates
from paceline.profile.functions import FUNCTIONS, Function, execution
from paceline.profile.learn import Learned, learn
from paceline.profile.points import Axes, choose_more, first_points

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
