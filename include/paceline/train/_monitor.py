"""When a training has learned enough: a curve through its metric says how many epochs it still needs.

``Converged`` is what training code asks for, ``Monitor`` what ``_loop`` and a parameter server follow. No torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ._values import bad_value, deferred_number, whole

# A curve of three parameters says nothing yet with fewer points.
_LEAST_POINTS = 4
# Where the curve may flatten out, beyond the best value so far: from a thousandth to a hundred times what has been
# gained, in powers of ten, looked at in these steps at first and then in finer ones around the best.
_LEAST, _MOST, _STEPS = -3.0, 2.0, (0.25, 0.05, 0.01, 0.002)
_FLAT = 1e-12


@dataclass(frozen=True)
class Converged:
    """A training is done when its metric has levelled off, or has reached a target: for ``track(until=...)``.

    The accuracy monitor of Deep-Edge, with the curve of Optimus: after each epoch ``c - 1 / (a k + b)`` is fitted to
    the metric after ``k`` epochs. It tells after how many epochs one more would gain less than ``gain``; the total
    that progress is measured by becomes that number, so a deadline's devices are given back while the training runs.

    Parameters
    ----------
    metric:
        A name that is reported after each epoch, or ``"loss"``.
    gain:
        An epoch that is expected to better the metric by less than this is not worth it.
    target:
        A value that is good enough.
    better:
        Whether ``"higher"`` or ``"lower"`` is better.
    patience:
        The word of the curve is not enough: so many epochs have to have gained less than ``gain`` on average. Where the
        curve does not say so, three times as many that have gained less than ``gain`` all together end the training.

    Examples
    --------
    >>> from paceline.train import Converged, report, track
    >>> loop = track(range(10), epochs=50, until=Converged("accuracy", gain=0.01))
    >>> for batch in loop:
    ...     if loop.epoch_end:
    ...         report(accuracy=0.9 - 0.5 / (loop.epoch + 1))
    >>> loop.epoch, loop.done, loop.total
    (9, 90, 90)
    """

    metric: str
    gain: float = 0.001
    target: float | None = None
    better: str = "higher"
    patience: int = 2

    def __post_init__(self) -> None:
        if not isinstance(self.metric, str) or not self.metric:
            raise bad_value("metric", self.metric, 'the name of what is reported, such as "accuracy"')
        gain = deferred_number("gain", self.gain)()
        object.__setattr__(self, "gain", gain)  # JSON knows no other kind of number
        if not 0 < gain < math.inf:
            raise bad_value("gain", self.gain, "more than 0")
        if self.target is not None:
            object.__setattr__(self, "target", deferred_number("target", self.target)())
            if not math.isfinite(self.target):
                raise bad_value("target", self.target, "a finite number, or None")
        if self.better not in ("higher", "lower"):
            raise bad_value("better", self.better, '"higher" or "lower"')
        whole("patience", self.patience)

    def to_dict(self) -> dict[str, Any]:
        """JSON-safe."""
        return asdict(self)


class Monitor:
    """Follows one metric.

    Parameters
    ----------
    until:
        What is enough.
    most:
        The most epochs there may be.

    Examples
    --------
    Half of what is missing to 0.8 remains each time the epochs double:

    >>> monitor = Monitor(Converged("accuracy", gain=0.002), most=100)
    >>> for epoch in range(1, 8):
    ...     monitor.add(epoch, 0.8 - 0.4 / epoch)
    >>> monitor.epochs
    14
    """

    def __init__(self, until: Converged, most: int) -> None:
        self.until = until
        self.most = most
        self.points: list[tuple[float, float]] = []  # epochs done, value
        self.epochs = most
        """How many epochs the training needs, as far as is known."""
        self.enough: str | None = None
        """Why no further epoch is needed, as a phrase for people; ``None`` while there is no reason."""

    def add(self, epochs_done: float, value: float) -> None:
        """Take in the metric's value after so many epochs; one that is no finite number tells nothing."""
        if not math.isfinite(value) or self.enough is not None:
            return
        self.points.append((epochs_done, value))
        self._judge()

    def restore(self, points: Sequence[Sequence[float]]) -> None:
        """Go on with the points of an earlier process."""
        for epochs, value in points:
            self.add(float(epochs), float(value))

    def _judge(self) -> None:
        until, (now, value) = self.until, self.points[-1]
        sign = 1 if until.better == "higher" else -1
        soonest = math.floor(now) + 1
        curve = fit([(epochs, sign * value) for epochs, value in self.points])
        needed = curve.epochs_until_gain(until.gain) if curve is not None else math.inf
        if until.target is not None and sign * (value - until.target) >= 0:
            self.enough = f"{until.metric} is {value:.4g}, good enough with {until.target:.4g}"
        elif now >= needed and self._gained(sign, until.patience) < until.patience * until.gain:
            self.enough = f"{until.metric} gains less than {until.gain:g} in an epoch by now"
        elif self._gained(sign, 3 * until.patience) < until.gain:
            self.enough = f"{until.metric} has not gained {until.gain:g} in {3 * until.patience} epochs"
        if self.enough is not None:
            self.epochs = min(math.ceil(now), self.most)
            return
        if curve is not None and until.target is not None:
            needed = min(needed, curve.epochs_until(sign * until.target))
        self.epochs = self.most if needed >= self.most else max(math.ceil(needed), soonest)

    def _gained(self, sign: int, last_epochs: int) -> float:
        """By how much the best value has become better in so many epochs; infinitely much where there were fewer."""
        now = self.points[-1][0]
        before = [sign * value for epochs, value in self.points if epochs <= now - last_epochs]
        since = [sign * value for epochs, value in self.points if epochs > now - last_epochs]
        return max(since) - max(before) if before else math.inf


@dataclass(frozen=True)
class LossCurve:
    """``ceiling - 1 / (a k + b)`` after ``k`` epochs: what Optimus fits to a loss, upside down."""

    ceiling: float
    a: float
    b: float

    def at(self, epochs: float) -> float:
        """The value after so many epochs."""
        return self.ceiling - 1 / (self.a * epochs + self.b)

    def epochs_until_gain(self, gain: float) -> float:
        """After how many epochs one more gains less than ``gain``."""
        # x = a k + b: the gain of an epoch is a / (x (x + a)).
        x = (math.sqrt(self.a * self.a + 4 * self.a / gain) - self.a) / 2
        return (x - self.b) / self.a

    def epochs_until(self, value: float) -> float:
        """After how many epochs ``value`` is reached; infinitely many if it never is."""
        return math.inf if value >= self.ceiling else (1 / (self.ceiling - value) - self.b) / self.a


def fit(points: Sequence[tuple[float, float]]) -> LossCurve | None:
    """Fit a curve to values that grow; ``None`` where there are too few, or where they do not grow.

    For each ceiling the rest is a straight line through ``1 / (ceiling - value)``, fitted with weights that make its
    errors those of the values. The ceiling with the smallest error is taken.

    >>> points = [(k, 0.9 - 1 / (2 * k + 1)) for k in range(1, 7)]
    >>> curve = fit(points)
    >>> round(curve.at(20), 3), round(0.9 - 1 / 41, 3)
    (0.876, 0.876)
    """
    if len(points) < _LEAST_POINTS:
        return None
    values = [value for _, value in points]
    best, spread = max(values), max(values) - min(values)
    if spread < _FLAT * max(1.0, abs(best)):
        return None
    found: dict[float, LossCurve] = {}
    low, high = _LEAST, _MOST
    for step in _STEPS:
        for place in range(round((high - low) / step) + 1):
            exponent = low + place * step
            curve = _line(points, best + 10**exponent * spread)
            if curve is not None:
                found[exponent] = curve
        if not found:
            return None
        nearest = min(found, key=lambda exponent: _error(found[exponent], points))
        low, high = nearest - step, nearest + step
    return found[nearest]


def _line(points: Sequence[tuple[float, float]], ceiling: float) -> LossCurve | None:
    sums = [0.0] * 5  # of weights, and of weights times k, y, k k, k y
    for k, value in points:
        short = ceiling - value
        weight, y = short**4, 1 / short
        for place, term in enumerate((1.0, k, y, k * k, k * y)):
            sums[place] += weight * term
    w, wk, wy, wkk, wky = sums
    spread = w * wkk - wk * wk
    if spread <= _FLAT * w * wkk:
        return None
    a = (w * wky - wk * wy) / spread
    b = (wy - a * wk) / w
    first = min(k for k, _ in points)
    return LossCurve(ceiling, a, b) if a > 0 and a * first + b > 0 else None


def _error(curve: LossCurve, points: Sequence[tuple[float, float]]) -> float:
    return sum((curve.at(k) - value) ** 2 for k, value in points)
