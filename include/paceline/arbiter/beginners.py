"""Trainings that have begun and have not shown yet how fast they are: they keep what they have until they do."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from paceline.arbiter.claim import Claim

_PATIENCE_S = 60.0  # starting takes some ten seconds, on few cores half a minute


class Beginners:
    """Knows who has begun lately.

    To stop such a training would cost what its start has cost, and nobody would learn what it needs; and to promise
    others what it holds, before that is known, may be to promise too much.

    Examples
    --------
    >>> from paceline.contract import Ceiling
    >>> has = Ceiling(0.4, grant=1)
    >>> new = Claim("new", "starting", 0, 60, 0, 1, 0.1, 2, 0.05, held=0.4, taken=1, ceiling=has, outlook=None)
    >>> beginners = Beginners()
    >>> beginners.look([new], known=(), now_s=0.0), beginners.look([new], known=(), now_s=60.0)
    ({'new': 0.4}, {})
    """

    def __init__(self) -> None:
        self._since_s: dict[str, float] = {}

    def look(self, claims: Sequence[Claim], known: Collection[str], now_s: float) -> dict[str, float]:
        """Take in all claims; return who is one of them, and the devices that it keeps."""
        begun = [claim for claim in claims if _has_begun(claim) and claim.key not in known]
        self._since_s = {claim.key: self._since_s.get(claim.key, now_s) for claim in begun}
        return {claim.key: claim.granted for claim in begun if now_s < self._since_s[claim.key] + _PATIENCE_S}


def _has_begun(claim: Claim) -> bool:
    return claim.taken is not None and claim.state in ("starting", "training") and claim.granted > 0
