"""The number of epochs of a ``track`` loop with ``until``, from the metric that the training code reports.

Used by ``_loop``.
"""

from __future__ import annotations

from . import _session
from ._values import bad_value, log
from .pacing.monitor import Converged, Monitor


class ReportMonitor(Monitor):
    """A monitor of the metric's newest report after each epoch.

    Parameters
    ----------
    until:
        The condition that ends training.
    max_epochs:
        The largest number of epochs.

    Raises
    ------
    ValueError
        If ``until`` is not a ``Converged``.
    """

    def __init__(self, until: Converged, max_epochs: int) -> None:
        if not isinstance(until, Converged):
            raise bad_value("until", until, 'a paceline.train.Converged, such as Converged("accuracy")')
        super().__init__(until, max_epochs)
        self._reports = 0  # number of reports when the metric was last read

    @property
    def reported(self) -> bool:
        """Whether the metric was reported since it was last read."""
        return _session.current.newest_report(self.until.metric)[0] != self._reports

    def expect_report(self) -> None:
        """After a restart: take the newest report, which the checkpoint contains, for one not read yet."""
        self._reports = -1

    def forecast(self, epochs_done: int, before: int) -> int:
        """After an epoch, read the metric and return the number of epochs; ``before`` if it was not reported."""
        metric = self.until.metric
        if not self.reported:
            if epochs_done == 2 and not self.points:
                log(f"until: no forecast, because {metric} was not reported in the first two epochs")
            return before
        self._reports, value = _session.current.newest_report(metric)
        self.add(epochs_done, value)
        epochs = max(self.epochs, epochs_done)
        if self.end_reason is not None:
            log(f"training ends after {epochs_done} epochs: {self.end_reason}")
        elif epochs != before:
            log(f"forecast from {metric}: {epochs} epochs")
        return epochs
