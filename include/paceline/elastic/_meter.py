"""Computes samples from resource usage and progress reports: cores and links in use, and batches per second."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from paceline.elastic._configuration import is_worker
from paceline.elastic.window import TeamSample, link_busy_share
from paceline.runtime import Usage
from paceline.train.progress import Progress

_MIN_S = 1.0
# Workers report the time at the end of a batch, so a sample covers whole batches. Batch durations vary, and the mean of
# single-batch speeds overestimates the speed over many batches, so a sample needs several batches of each worker.
_MIN_BATCHES, _MIN_BATCHES_EACH = 10, 3


@dataclass
class _Reading:
    usages: Mapping[str, Usage] = field(default_factory=dict)
    progress: Mapping[str, Progress] = field(default_factory=dict)


class Meter:
    """Computes a sample once enough time has passed and enough batches have ended since the last sample.

    Parameters
    ----------
    link_mbit_s:
        Capacity of each node's link in each direction, in Mbit/s; ``None`` (unknown) counts as unlimited.

    Examples
    --------
    >>> meter = Meter(link_mbit_s=8.0)
    >>> for second in (0.0, 2.0):
    ...     usage = Usage(cpu_s=second / 2, memory_bytes=0, measured_s=second, received_bytes=int(1e6 * second))
    ...     batches = Progress(done=int(20 * second), total=99, wall_s=second)
    ...     sample = meter.take_sample({"ps-0": usage, "worker-0": usage}, {"worker-0": batches})
    >>> sample
    TeamSample(speed=20.0, used={'ps-0': 0.5, 'worker-0': 0.5}, network={'ps-0': 1.0})
    """

    def __init__(self, link_mbit_s: float | None = None) -> None:
        self._link_bytes_s = link_mbit_s * 1e6 / 8 if link_mbit_s else None
        self._last: _Reading | None = None

    def clear(self) -> None:
        """Restart the measurement after a change of the configuration."""
        self._last = None

    def take_sample(self, usages: Mapping[str, Usage], progress: Mapping[str, Progress]) -> TeamSample | None:
        """Process the newest usage of all nodes and reports of workers; return a sample once it is complete."""
        now = _Reading(dict(usages), dict(progress))
        last = self._last
        if last is None or last.usages.keys() != now.usages.keys() or last.progress.keys() != now.progress.keys():
            self._last = now
            return None
        elapsed_s = {name: one.measured_s - last.usages[name].measured_s for name, one in now.usages.items()}
        batches = {name: one.done - last.progress[name].done for name, one in now.progress.items()}
        reported_s = {name: one.wall_s - last.progress[name].wall_s for name, one in now.progress.items()}
        if min((*elapsed_s.values(), *reported_s.values())) < _MIN_S:
            return None
        if sum(batches.values()) < _MIN_BATCHES or min(batches.values()) < _MIN_BATCHES_EACH:
            return None
        self._last = now
        return TeamSample(
            speed=sum(batches[name] / reported_s[name] for name in batches),
            used={name: (one.cpu_s - last.usages[name].cpu_s) / elapsed_s[name] for name, one in now.usages.items()},
            network={
                name: self._link_load(last.usages[name], one, elapsed_s[name])
                for name, one in now.usages.items()
                if not is_worker(name)
            },
        )

    def _link_load(self, before: Usage, now: Usage, elapsed_s: float) -> float:
        if not self._link_bytes_s:
            return 0.0
        capacity = elapsed_s * self._link_bytes_s
        received, sent = now.received_bytes - before.received_bytes, now.sent_bytes - before.sent_bytes
        return link_busy_share(received / capacity, sent / capacity)
