"""Answers a scheduler's questions from device profiles: see :class:`paceline.schedule.Estimates`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from paceline.profile.device import DeviceProfile, NoProfileError
from paceline.profile.functions import FUNCTIONS, execution
from paceline.profile.learn import Learned
from paceline.schedule import Candidate, State

Floats = NDArray[np.float64]

_COMPUTE, _UPDATE, _CPU, _GPU, _MEMORY = FUNCTIONS
_MEMORY_KEPT_FREE = 0.05


class ProfileEstimates:
    """Estimates for candidates of several kinds; all of a kind are asked about at once.

    Parameters
    ----------
    profiles:
        Kind to profile.

    Raises
    ------
    NoProfileError
        When asked about a candidate of a kind, or with an application, that was not profiled.
    """

    def __init__(self, profiles: Mapping[str, DeviceProfile]) -> None:
        self._profiles = profiles

    def max_batch(self, candidates: Sequence[Candidate]) -> NDArray[np.int64]:
        """The largest measured batch size that leaves a little memory free, ``GetMaxBatchSize``; 0 if none does."""
        found = np.zeros(len(candidates), dtype=np.int64)
        for profile, places, members in self._by_kind(candidates):
            memory = profile[_MEMORY]
            for size in profile.batch_sizes:
                fits = memory(_states(members, size)) <= 1 - _MEMORY_KEPT_FREE
                found[places[fits]] = size
        return found

    def compute_s(self, candidates: Sequence[Candidate], batch: Floats) -> Floats:
        """Seconds to compute one sample, equation (5)."""
        return self._each(
            candidates,
            lambda profile: profile[_COMPUTE],
            lambda places, members: np.column_stack(
                [[one.state.cpu for one in members], [one.state.gpu for one in members], batch[places]]
            ),
        )

    def update_s(self, candidates: Sequence[Candidate], batch: Floats, server: State) -> Floats:
        """Seconds to push, update and pull when exactly these train, equation (6)."""
        # Whoever computes quickly asks the server more often, and all wait longer.
        pushes, workers = float(np.sum(1 / (batch * self.compute_s(candidates, batch)))), len(candidates)
        return self._each(
            candidates,
            lambda profile: profile[_UPDATE],
            lambda places, members: np.column_stack(
                [
                    [one.state.cpu for one in members],
                    batch[places],
                    np.full(len(members), pushes),
                    np.full(len(members), server.cpu),
                    np.full(len(members), workers),
                ]
            ),
        )

    def execution_s(self, candidates: Sequence[Candidate]) -> Sequence[Mapping[str, float]]:
        """Seconds for one execution of each application beside the training, equations (7) and (8)."""
        times: list[dict[str, float]] = [{} for _ in candidates]
        sizes = self.max_batch(candidates).astype(float)
        for profile, places, members in self._by_kind(candidates):
            states = _states(members, np.maximum(sizes[places], 1.0))
            before = [[one.state.cpu for one in members], [one.state.memory for one in members]]
            new = np.column_stack([*before, *(profile[one](states) for one in (_CPU, _GPU, _MEMORY))])
            for app in sorted({app for one in members for app in one.latency_s}):
                seconds = profile[execution(app)](new)
                for place, one, each_s in zip(places, members, seconds, strict=True):
                    if app in one.latency_s:
                        times[place][app] = float(each_s)
        return times

    def _each(
        self,
        candidates: Sequence[Candidate],
        function: Callable[[DeviceProfile], Learned],
        features: Callable[[NDArray[np.intp], list[Candidate]], Floats],
    ) -> Floats:
        found = np.empty(len(candidates))
        for profile, places, members in self._by_kind(candidates):
            found[places] = function(profile)(features(places, members))
        return found

    def _by_kind(
        self, candidates: Sequence[Candidate]
    ) -> list[tuple[DeviceProfile, NDArray[np.intp], list[Candidate]]]:
        groups: defaultdict[str, list[int]] = defaultdict(list)
        for place, one in enumerate(candidates):
            groups[one.kind].append(place)
        missing = sorted(set(groups) - set(self._profiles))
        if missing:
            known = ", ".join(sorted(self._profiles)) or "none yet"
            raise NoProfileError(f"kind: got {missing[0]!r}, expected one that was profiled ({known})")
        return [
            (self._profiles[kind], np.array(places), [candidates[place] for place in places])
            for kind, places in groups.items()
        ]


def _states(candidates: Sequence[Candidate], batch: float | Floats) -> Floats:
    sizes = np.broadcast_to(np.asarray(batch, dtype=float), (len(candidates),))
    return np.column_stack(
        [
            [one.state.cpu for one in candidates],
            [one.state.gpu for one in candidates],
            [one.state.memory for one in candidates],
            sizes,
        ]
    )
