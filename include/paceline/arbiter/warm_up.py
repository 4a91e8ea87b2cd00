"""Trainings that have begun and have not shown yet how fast they are: they keep what they have until they do."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from paceline.arbiter.request import DeviceRequest

_PATIENCE_S = 60.0  # starting takes some ten seconds, on few cores half a minute


class WarmUp:
    """Knows who has begun lately.

    To stop such a training would cost what its start has cost, and nobody would learn what it needs; and to promise
    others what it holds, before that is known, may be to promise too much.

    Examples
    --------
    >>> from paceline.contract import Ceiling
    >>> has = Ceiling(0.4, grant=1)
    >>> new = DeviceRequest("new", "starting", 0, 60, 0, 1, 0.1, 2, 0.05, held=0.4, taken=1, ceiling=has)
    >>> warm_up = WarmUp()
    >>> warm_up.look([new], known=(), now_s=0.0), warm_up.look([new], known=(), now_s=60.0)
    ({'new': 0.4}, {})
    """

    def __init__(self) -> None:
        self._since_s: dict[str, float] = {}

    def look(self, requests: Sequence[DeviceRequest], known: Collection[str], now_s: float) -> dict[str, float]:
        """Take in all requests; return who is one of them, and the devices that it keeps."""
        begun = [request for request in requests if _has_begun(request) and request.key not in known]
        self._since_s = {request.key: self._since_s.get(request.key, now_s) for request in begun}
        return {request.key: request.granted for request in begun if now_s < self._since_s[request.key] + _PATIENCE_S}


def _has_begun(request: DeviceRequest) -> bool:
    return request.taken is not None and request.state in ("starting", "training") and request.granted > 0
