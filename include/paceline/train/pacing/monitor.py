"""The accuracy monitor: fits a curve to a metric and predicts how many epochs training still needs.

Training code passes ``Converged`` to ``track``; ``_loop`` and the parameter server use ``Monitor``. Does not use torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from paceline.train._values import bad_value, deferred_number, whole_number

# The curve has three parameters, so a fit needs at least four points.
_MIN_POINTS = 4
# A fit to more points takes longer, and hardly changes the forecast.
_MAX_POINTS = 200
# Candidates for the ceiling of the curve: the best value plus 10**exponent times the gain so far. The search tries
# exponents in coarse steps, then in finer steps around the best exponent.
_MIN_EXPONENT, _MAX_EXPONENT, _EXPONENT_STEPS = -3.0, 2.0, (0.25, 0.05, 0.01, 0.002)
_FLAT = 1e-12
_MAX_SPREAD = 1e70  # the fourth power of a larger distance to a ceiling, its weight in the fit, overflows


@dataclass(frozen=True)
class Converged:
    """A condition that ends training, for ``track(until=...)``: the metric levels off or reaches a target.

    This is the accuracy monitor of Deep-Edge with the curve of Optimus. After each epoch, it fits ``c - 1 / (a k + b)``
    to the metric after ``k`` epochs and predicts the epoch after which the gain per epoch is below ``gain``. Progress
    then refers to the predicted number of epochs, so a deadline controller can release devices while the job runs.

    Parameters
    ----------
    metric:
        Name of a metric that the training code reports after each epoch, or ``"loss"``.
    gain:
        The smallest expected gain that justifies another epoch.
    target:
        The value of the metric at which training ends; ``None`` for no target.
    better:
        Whether ``"higher"`` or ``"lower"`` is better.
    patience:
        Number of epochs whose average gain must be below ``gain`` to confirm the prediction. Training also ends,
        whatever the curve predicts, when the last ``3 * patience`` epochs together gain less than ``gain``.

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
            raise bad_value("metric", self.metric, 'the name of a reported metric, such as "accuracy"')
        gain = deferred_number("gain", self.gain)()
        object.__setattr__(self, "gain", gain)  # JSON stores only plain numbers
        if not 0 < gain < math.inf:
            raise bad_value("gain", self.gain, "more than 0")
        if self.target is not None:
            object.__setattr__(self, "target", deferred_number("target", self.target)())
            if not math.isfinite(self.target):
                raise bad_value("target", self.target, "a finite number, or None")
        if self.better not in ("higher", "lower"):
            raise bad_value("better", self.better, '"higher" or "lower"')
        object.__setattr__(self, "patience", whole_number("patience", self.patience))

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return asdict(self)


class Monitor:
    """Predicts the number of epochs from the values of a metric.

    Parameters
    ----------
    until:
        The condition that ends training.
    max_epochs:
        The largest number of epochs.

    Examples
    --------
    The distance to 0.8 halves when the number of epochs doubles:

    >>> monitor = Monitor(Converged("accuracy", gain=0.002), max_epochs=100)
    >>> for epoch in range(1, 8):
    ...     monitor.add(epoch, 0.8 - 0.4 / epoch)
    >>> monitor.epochs
    14
    """

    def __init__(self, until: Converged, max_epochs: int) -> None:
        self.until = until
        self.max_epochs = max_epochs
        self.points: list[tuple[float, float]] = []  # pairs of the epochs done and the value
        self.epochs = max_epochs
        """The predicted number of epochs."""
        self.end_reason: str | None = None
        """Why training ends, as a clause for a log line; ``None`` while training continues."""

    def add(self, epochs_done: float, value: float) -> None:
        """Add the metric's value after ``epochs_done`` epochs. Ignore a value that is not finite."""
        if not math.isfinite(value) or self.end_reason is not None:
            return
        self.points.append((epochs_done, value))
        self._update_forecast()

    def restore(self, points: Sequence[Sequence[float]]) -> None:
        """Add the points that an earlier process has recorded."""
        self.points += [(float(epochs), float(value)) for epochs, value in points]
        if self.points:  # the earlier process added none after the one that ended training
            self._update_forecast()

    def _update_forecast(self) -> None:
        until, (now, value) = self.until, self.points[-1]
        sign = 1 if until.better == "higher" else -1
        next_epoch = math.floor(now) + 1
        fitted = self.points[:: math.ceil(len(self.points) / _MAX_POINTS)]
        curve = fit_curve([(epochs, sign * value) for epochs, value in fitted])
        needed = curve.epochs_until_gain(until.gain) if curve is not None else math.inf
        if until.target is not None and sign * (value - until.target) >= 0:
            self.end_reason = f"{until.metric} is {value:.4g}, which reaches the target of {until.target:.4g}"
        elif now >= needed and self._recent_gain(sign, until.patience) < until.patience * until.gain:
            self.end_reason = f"{until.metric} now gains less than {until.gain:g} per epoch"
        elif self._recent_gain(sign, 3 * until.patience) < until.gain:
            self.end_reason = f"{until.metric} has not gained {until.gain:g} in {3 * until.patience} epochs"
        if self.end_reason is not None:
            self.epochs = min(math.ceil(now), self.max_epochs)
            return
        if curve is not None and until.target is not None:
            needed = min(needed, curve.epochs_until(sign * until.target))
        self.epochs = self.max_epochs if needed >= self.max_epochs else max(math.ceil(needed), next_epoch)

    def _recent_gain(self, sign: int, last_epochs: int) -> float:
        """Return the growth of the best value over the last ``last_epochs`` epochs; infinity if there are fewer."""
        now = self.points[-1][0]
        before = [sign * value for epochs, value in self.points if epochs <= now - last_epochs]
        since = [sign * value for epochs, value in self.points if epochs > now - last_epochs]
        return max(since) - max(before) if before else math.inf


@dataclass(frozen=True)
class LossCurve:
    """``ceiling - 1 / (a k + b)`` after ``k`` epochs: the curve that Optimus fits to a loss, with reversed sign."""

    ceiling: float
    a: float
    b: float

    def at(self, epochs: float) -> float:
        """Return the value after ``epochs`` epochs."""
        return self.ceiling - 1 / (self.a * epochs + self.b)

    def epochs_until_gain(self, gain: float) -> float:
        """Return the number of epochs after which another epoch gains less than ``gain``."""
        # x = a k + b: the gain of an epoch is a / (x (x + a)).
        x = (math.sqrt(self.a * self.a + 4 * self.a / gain) - self.a) / 2
        return (x - self.b) / self.a

    def epochs_until(self, value: float) -> float:
        """Return the number of epochs after which the curve reaches ``value``; infinity if it never does."""
        return math.inf if value >= self.ceiling else (1 / (self.ceiling - value) - self.b) / self.a


def fit_curve(points: Sequence[tuple[float, float]]) -> LossCurve | None:
    """Fit a curve to growing values; return ``None`` for too few points and for values that do not grow or diverge.

    For each candidate ceiling, fit a straight line to ``1 / (ceiling - value)``. Its weights make the fit minimise the
    errors of the values instead of those of the line. Return the curve with the smallest error.

    >>> points = [(k, 0.9 - 1 / (2 * k + 1)) for k in range(1, 7)]
    >>> curve = fit_curve(points)
    >>> round(curve.at(20), 3), round(0.9 - 1 / 41, 3)
    (0.876, 0.876)
    """
    if len(points) < _MIN_POINTS:
        return None
    values = [value for _, value in points]
    best, spread = max(values), max(values) - min(values)
    if not _FLAT * max(1.0, abs(best)) <= spread <= _MAX_SPREAD:
        return None
    curves: dict[float, LossCurve] = {}
    low, high = _MIN_EXPONENT, _MAX_EXPONENT
    for step in _EXPONENT_STEPS:
        for index in range(round((high - low) / step) + 1):
            exponent = low + index * step
            curve = _fit_line(points, best + 10**exponent * spread)
            if curve is not None:
                curves[exponent] = curve
        if not curves:
            return None
        nearest = min(curves, key=lambda exponent: _squared_error(curves[exponent], points))
        low, high = nearest - step, nearest + step
    return curves[nearest]


def _fit_line(points: Sequence[tuple[float, float]], ceiling: float) -> LossCurve | None:
    sums = [0.0] * 5  # sums of the weights, and of the weights times k, y, k k, k y
    for k, value in points:
        gap = ceiling - value
        weight, y = gap**4, 1 / gap
        for index, term in enumerate((1.0, k, y, k * k, k * y)):
            sums[index] += weight * term
    w, wk, wy, wkk, wky = sums
    spread = w * wkk - wk * wk
    if spread <= _FLAT * w * wkk:
        return None
    a = (w * wky - wk * wy) / spread
    b = (wy - a * wk) / w
    first = min(k for k, _ in points)
    return LossCurve(ceiling, a, b) if a > 0 and a * first + b > 0 else None


def _squared_error(curve: LossCurve, points: Sequence[tuple[float, float]]) -> float:
    return sum((curve.at(k) - value) ** 2 for k, value in points)
