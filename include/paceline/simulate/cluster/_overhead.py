"""The overhead of scheduling as ElasticFlow's simulator counts it: every running job stops at every round."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, log2

from paceline.errors import InvalidInputError

_LARGE_POOL = 256  # a round costs more in a pool of this many devices or more
_ROUND_S = (2.0, 7.0)  # seconds for each running job, in a small and in a large pool
_RESTART_S = (27.0, 47.0)  # additional seconds while all processes restart
_PER_DOUBLING_S = 2.0  # additional seconds for each doubling of an allocation that is not cached


@dataclass(frozen=True)
class ElasticFlowOverhead:
    """Seconds that running jobs lose in a scheduling round, as in the simulator that ElasticFlow published.

    A round costs 2 s, or 7 s in a pool of 256 devices or more. A job whose devices are not cached, because it did
    not use the same devices before, loses 2 s more on one device, and another 2 s for each doubling. After every
    ``slot_s`` rounds (the published simulator uses the same number for both), all processes restart: nothing is cached,
    and the round costs another 27 or 47 s. The published simulator caches sets of devices; here a job's devices are
    cached while its allocation does not change.

    Parameters
    ----------
    slot_s:
        Minimum time between two rounds in which no allocation changes, and number of rounds between two restarts.

    Examples
    --------
    >>> overhead = ElasticFlowOverhead()
    >>> overhead.seconds(4, pool=128, cached=True, restart=False), overhead.seconds(4, 128, cached=False, restart=False)
    (2.0, 8.0)
    >>> overhead.seconds(4, pool=256, cached=False, restart=True)
    60.0

    References
    ----------
    https://github.com/pkusys/ElasticFlow, ElasticFlow/scheduler/utils.py.
    """

    slot_s: float = 60.0

    def __post_init__(self) -> None:
        if not 1 <= self.slot_s < inf:
            raise InvalidInputError("slot_s", self.slot_s, "1 or more seconds")

    def seconds(self, devices: int, pool: int, *, cached: bool, restart: bool) -> float:
        """Return the seconds that a job on ``devices`` of ``pool`` devices loses in a round."""
        large = pool >= _LARGE_POOL
        if restart:
            return _ROUND_S[large] + _RESTART_S[large] + _PER_DOUBLING_S * (log2(devices) + 1)
        return _ROUND_S[large] + (0.0 if cached else _PER_DOUBLING_S * (log2(devices) + 1))

    def restarts(self, round_number: int) -> bool:
        """Return whether all processes restart in a round; the first round has number 0."""
        return round_number > 0 and round_number % int(self.slot_s) == 0
