"""Answers a scheduler's questions from device profiles: see :class:`paceline.schedule.Estimates`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from paceline.profiles.device import DeviceProfile, NoProfileError
from paceline.profiles.functions import FUNCTIONS, Function, execution
from paceline.profiles.table import Table
from paceline.schedule import Candidate, State

Floats = NDArray[np.float64]
_Groups = list[tuple[DeviceProfile, NDArray[np.intp], list[Candidate]]]  # their places among all who are asked about

_COMPUTE, _UPDATE, _CPU, _GPU, _MEMORY = FUNCTIONS
_MEMORY_KEPT_FREE = 0.05
_MANY = 32  # candidates, from which on a table is worth it


class ProfileEstimates:
    """Estimates for candidates of several kinds; all of a kind are asked about at once.

    What is asked of many candidates comes from tables of the functions: a scheduler asks again and again.

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
        self._tables: dict[tuple[object, ...], Table] = {}

    def max_batch(self, candidates: Sequence[Candidate]) -> NDArray[np.int64]:
        """The largest measured batch size that leaves a little memory free, ``GetMaxBatchSize``; 0 if none does."""
        found = np.zeros(len(candidates), dtype=np.int64)
        for profile, places, members in self._by_kind(candidates):
            memory = self._ask(profile, _MEMORY, len(candidates))
            for size in profile.batch_sizes:
                fits = memory(_states(members, size)) <= 1 - _MEMORY_KEPT_FREE
                found[places[fits]] = size
        return found

    def compute_s(self, candidates: Sequence[Candidate], batch: Floats) -> Floats:
        """Seconds to compute one sample, equation (5)."""
        return self._compute_s(self._by_kind(candidates), batch)

    def _compute_s(self, groups: _Groups, batch: Floats) -> Floats:
        return self._each(
            groups,
            len(batch),
            _COMPUTE,
            {},
            lambda places, members: np.column_stack(
                [[one.state.cpu for one in members], [one.state.gpu for one in members], batch[places]]
            ),
        )

    def update_s(self, candidates: Sequence[Candidate], batch: Floats, server: State) -> Floats:
        """Seconds to push, update and pull when exactly these train, equation (6)."""
        # Whoever computes quickly asks the server more often, and all wait longer.
        groups, workers = self._by_kind(candidates), len(candidates)
        pushes = float(np.sum(1 / (batch * self._compute_s(groups, batch))))
        return self._each(
            groups,
            workers,
            _UPDATE,
            {"server_cpu": server.cpu},
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
            after = (self._ask(profile, one, len(candidates))(states) for one in (_CPU, _GPU, _MEMORY))
            new = np.column_stack([*before, *after])
            for app in sorted({app for one in members for app in one.latency_s}):
                seconds = profile[execution(app)](new)
                for place, one, each_s in zip(places, members, seconds, strict=True):
                    if app in one.latency_s:
                        times[place][app] = float(each_s)
        return times

    def _each(
        self,
        groups: _Groups,
        candidates: int,
        function: Function,
        fixed: Mapping[str, float],
        features: Callable[[NDArray[np.intp], list[Candidate]], Floats],
    ) -> Floats:
        found = np.empty(candidates)
        for profile, places, members in groups:
            found[places] = self._ask(profile, function, candidates, fixed)(features(places, members))
        return found

    def _ask(
        self, profile: DeviceProfile, function: Function, candidates: int, fixed: Mapping[str, float] | None = None
    ) -> Callable[[Floats], Floats]:
        """The function, or for many candidates a table of it; once there is one, fewer are told by it as well."""
        key = (profile.kind, function.name, *(fixed or {}).values())
        if key not in self._tables:
            if candidates < _MANY:
                return profile[function]
            self._tables[key] = Table(profile[function], dict(fixed or {}))
        return self._tables[key]

    def _by_kind(self, candidates: Sequence[Candidate]) -> _Groups:
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
