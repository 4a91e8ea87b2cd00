"""From what engines and workers say to samples: cores and links in use, and steps a second."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from paceline.elastic.configuration import is_worker
from paceline.elastic.window import TeamSample, either
from paceline.runtime.base import Usage
from paceline.train.progress import Progress

_LEAST_S = 1.0
# Workers tell the time at the end of a step, so no step counts in part; but no step takes as long as the next one, and
# the mean speed of single steps is above the speed of them all: of each worker it takes some.
_LEAST_STEPS, _LEAST_STEPS_EACH = 10, 3


@dataclass
class _Reading:
    usages: Mapping[str, Usage] = field(default_factory=dict)
    progress: Mapping[str, Progress] = field(default_factory=dict)


class Meter:
    """Makes a sample as soon as enough has happened since the last one.

    Parameters
    ----------
    link_mbit_s:
        Capacity of each node's link in each direction; ``None``, where it is not known, is one without limit.

    Examples
    --------
    >>> meter = Meter(link_mbit_s=8.0)
    >>> for second in (0.0, 2.0):
    ...     usage = Usage(cpu_s=second / 2, memory_bytes=0, measured_s=second, received_bytes=int(1e6 * second))
    ...     steps = Progress(done=int(20 * second), total=99, wall_s=second)
    ...     sample = meter.take({"ps-0": usage, "worker-0": usage}, {"worker-0": steps})
    >>> sample
    TeamSample(speed=20.0, used={'ps-0': 0.5, 'worker-0': 0.5}, network={'ps-0': 1.0})
    """

    def __init__(self, link_mbit_s: float | None = None) -> None:
        self._link_bytes_s = link_mbit_s * 1e6 / 8 if link_mbit_s else None
        self._last: _Reading | None = None

    def clear(self) -> None:
        """Begin anew: nodes or their cores have changed."""
        self._last = None

    def take(self, usages: Mapping[str, Usage], progress: Mapping[str, Progress]) -> TeamSample | None:
        """Take in the newest figures of all nodes, and the newest report of each worker."""
        now = _Reading(dict(usages), dict(progress))
        last = self._last
        if last is None or last.usages.keys() != now.usages.keys() or last.progress.keys() != now.progress.keys():
            self._last = now
            return None
        passed_s = {name: one.measured_s - last.usages[name].measured_s for name, one in now.usages.items()}
        steps = {name: one.done - last.progress[name].done for name, one in now.progress.items()}
        reported_s = {name: one.wall_s - last.progress[name].wall_s for name, one in now.progress.items()}
        if min((*passed_s.values(), *reported_s.values())) < _LEAST_S:
            return None
        if sum(steps.values()) < _LEAST_STEPS or min(steps.values()) < _LEAST_STEPS_EACH:
            return None
        self._last = now
        return TeamSample(
            speed=sum(steps[name] / reported_s[name] for name in steps),
            used={name: (one.cpu_s - last.usages[name].cpu_s) / passed_s[name] for name, one in now.usages.items()},
            network={
                name: self._load(last.usages[name], one, passed_s[name])
                for name, one in now.usages.items()
                if not is_worker(name)
            },
        )

    def _load(self, before: Usage, now: Usage, passed_s: float) -> float:
        if not self._link_bytes_s:
            return 0.0
        most = passed_s * self._link_bytes_s
        received, sent = now.received_bytes - before.received_bytes, now.sent_bytes - before.sent_bytes
        return either(received / most, sent / most)
