"""Warm-up: a job that has just started keeps its devices until its speed is known."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from paceline.arbiter._request import DeviceRequest

_LIMIT_S = 60.0  # maximum warm-up; a start takes about 10 s, or about 30 s on few cores


class WarmUp:
    """Tracks which jobs are in warm-up.

    Preempting a job in warm-up wastes its start-up time and leaves its speed unknown.

    Examples
    --------
    >>> from paceline.contract import Ceiling
    >>> has = Ceiling(0.4, grant=1)
    >>> new = DeviceRequest("new", "starting", 0, 60, 0, 1, 0.1, 2, 0.05, held=0.4, applied_grant=1, ceiling=has)
    >>> warm_up = WarmUp()
    >>> warm_up.update([new], known=(), now_s=0.0), warm_up.update([new], known=(), now_s=60.0)
    ({'new': (0.4, 60.0)}, {})
    """

    def __init__(self) -> None:
        self._since_s: dict[str, float] = {}
        self._ended: set[str] = set()

    def update(
        self, requests: Sequence[DeviceRequest], known: Collection[str], now_s: float
    ) -> dict[str, tuple[float, float]]:
        """Return the jobs in warm-up, each with its devices and the time until which it keeps them, in seconds.

        Jobs in ``known`` have ended their warm-up.
        """
        started = [request for request in requests if _has_started(request) and request.key not in known]
        self._since_s = {request.key: self._since_s.get(request.key, now_s) for request in started}
        warming_up = {}
        self._ended &= self._since_s.keys()
        for request in started:
            ends_s = self._since_s[request.key] + _LIMIT_S
            if now_s < ends_s and request.key not in self._ended:
                warming_up[request.key] = (request.granted, ends_s)
        return warming_up

    def end(self, key: str) -> None:
        """End the warm-up of a job early, because its devices are needed to meet a promised deadline."""
        self._ended.add(key)


def _has_started(request: DeviceRequest) -> bool:
    return request.shared and request.state in ("starting", "training") and request.granted > 0
