"""One job's control loop: progress in, allocation out, live deadline and ceiling heard, history kept.

Start at :class:`PaceLoop`.
"""

from paceline.pace.history import History
from paceline.pace.live import Exchange, LiveState, MemoryState
from paceline.pace.loop import PaceLoop
from paceline.pace.outcome import Outcome

__all__ = ["Exchange", "History", "LiveState", "MemoryState", "Outcome", "PaceLoop"]
