"""Paceline's own allocator: meets as many deadlines as possible, each with the fewest devices."""

from paceline.allocate.on_time._bound import most_on_time
from paceline.allocate.on_time._policy import OnTime, on_time_promises

__all__ = ["OnTime", "most_on_time", "on_time_promises"]
