"""Performance profiles of device kinds, learned from measurements at a few points and stored as JSON.

:class:`DeviceProfile` has the functions of Deep-Edge for one kind; :class:`ProfileEstimates` evaluates them for a
scheduler.
"""

from __future__ import annotations

from paceline.profiles._device import DeviceProfile, NoProfileError
from paceline.profiles._estimates import ProfileEstimates
from paceline.profiles._functions import FUNCTIONS, Function, execution
from paceline.profiles._origin import Origin
from paceline.profiles._points import Axes, choose_more, first_points
from paceline.profiles.learn import Learned, learn

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
