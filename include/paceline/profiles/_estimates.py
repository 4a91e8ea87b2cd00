"""Provides a scheduler with estimates from device profiles; implements :class:`paceline.schedule.Estimates`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from paceline.profiles._device import DeviceProfile, NoProfileError
from paceline.profiles._functions import FUNCTIONS, Function, execution
from paceline.profiles._table import Table
from paceline.schedule import Candidate, State

Floats = NDArray[np.float64]
_Groups = list[tuple[DeviceProfile, NDArray[np.intp], list[Candidate]]]  # profile, indices of candidates, candidates

_COMPUTE, _UPDATE, _CPU, _GPU, _MEMORY = FUNCTIONS
_FREE_MEMORY = 0.05
_TABLE_CANDIDATES = 32  # a table is faster for this many candidates or more


class ProfileEstimates:
    """Evaluates the learned functions for candidates of several kinds, with one call per kind.

    For many candidates, tables replace the functions, because a scheduler evaluates each function repeatedly.

    Parameters
    ----------
    profiles:
        Mapping of kinds to profiles.

    Raises
    ------
    NoProfileError
        In each method, if the kind or an application of a candidate has no profile.
    """

    def __init__(self, profiles: Mapping[str, DeviceProfile]) -> None:
        self._profiles = profiles
        self._tables: dict[tuple[object, ...], Table] = {}

    def max_batch(self, candidates: Sequence[Candidate]) -> NDArray[np.int64]:
        """Return the largest measured batch size that leaves 5 % of memory free, or 0 (``GetMaxBatchSize``)."""
        result = np.zeros(len(candidates), dtype=np.int64)
        for profile, indices, members in self._group_by_kind(candidates):
            memory = self._function(profile, _MEMORY, len(candidates))
            for size in profile.batch_sizes:
                fits = memory(_state_rows(members, size)) <= 1 - _FREE_MEMORY
                result[indices[fits]] = size
        return result

    def compute_s(self, candidates: Sequence[Candidate], batch: Floats) -> Floats:
        """Return the seconds that each candidate computes for one sample, equation (5)."""
        return self._compute_s(self._group_by_kind(candidates), batch)

    def _compute_s(self, groups: _Groups, batch: Floats) -> Floats:
        return self._evaluate(
            groups,
            len(batch),
            _COMPUTE,
            {},
            lambda indices, members: np.column_stack(
                [[one.state.cpu for one in members], [one.state.gpu for one in members], batch[indices]]
            ),
        )

    def update_s(self, candidates: Sequence[Candidate], batch: Floats, server: State) -> Floats:
        """Return the seconds of each push, update and pull if exactly these candidates train, equation (6)."""
        # Fast workers push more often, which delays all workers.
        groups, workers = self._group_by_kind(candidates), len(candidates)
        pushes = float(np.sum(1 / (batch * self._compute_s(groups, batch))))
        return self._evaluate(
            groups,
            workers,
            _UPDATE,
            {"server_cpu": server.cpu},
            lambda indices, members: np.column_stack(
                [
                    [one.state.cpu for one in members],
                    batch[indices],
                    np.full(len(members), pushes),
                    np.full(len(members), server.cpu),
                    np.full(len(members), workers),
                ]
            ),
        )

    def execution_s(self, candidates: Sequence[Candidate]) -> Sequence[Mapping[str, float]]:
        """Return the seconds that each application needs for one execution during training, equations (7) and (8)."""
        times: list[dict[str, float]] = [{} for _ in candidates]
        sizes = self.max_batch(candidates).astype(float)
        for profile, indices, members in self._group_by_kind(candidates):
            states = _state_rows(members, np.maximum(sizes[indices], 1.0))
            before = [[one.state.cpu for one in members], [one.state.memory for one in members]]
            after = (self._function(profile, one, len(candidates))(states) for one in (_CPU, _GPU, _MEMORY))
            new = np.column_stack([*before, *after])
            for app in sorted({app for one in members for app in one.latency_s}):
                seconds = profile[execution(app)](new)
                for index, one, duration_s in zip(indices, members, seconds, strict=True):
                    if app in one.latency_s:
                        times[index][app] = float(duration_s)
        return times

    def _evaluate(
        self,
        groups: _Groups,
        candidates: int,
        function: Function,
        fixed: Mapping[str, float],
        features: Callable[[NDArray[np.intp], list[Candidate]], Floats],
    ) -> Floats:
        result = np.empty(candidates)
        for profile, indices, members in groups:
            result[indices] = self._function(profile, function, candidates, fixed)(features(indices, members))
        return result

    def _function(
        self, profile: DeviceProfile, function: Function, candidates: int, fixed: Mapping[str, float] | None = None
    ) -> Callable[[Floats], Floats]:
        """Return the learned function; if its table exists or there are many candidates, return the table instead."""
        key = (profile.kind, function.name, *(fixed or {}).values())
        if key not in self._tables:
            if candidates < _TABLE_CANDIDATES:
                return profile[function]
            self._tables[key] = Table(profile[function], dict(fixed or {}))
        return self._tables[key]

    def _group_by_kind(self, candidates: Sequence[Candidate]) -> _Groups:
        groups: defaultdict[str, list[int]] = defaultdict(list)
        for index, one in enumerate(candidates):
            groups[one.kind].append(index)
        missing = sorted(set(groups) - set(self._profiles))
        if missing:
            known = ", ".join(sorted(self._profiles)) or "none yet"
            raise NoProfileError(f"kind: got {missing[0]!r}, expected a profiled kind ({known})")
        return [
            (self._profiles[kind], np.array(indices), [candidates[index] for index in indices])
            for kind, indices in groups.items()
        ]


def _state_rows(candidates: Sequence[Candidate], batch: float | Floats) -> Floats:
    sizes = np.broadcast_to(np.asarray(batch, dtype=float), (len(candidates),))
    return np.column_stack(
        [
            [one.state.cpu for one in candidates],
            [one.state.gpu for one in candidates],
            [one.state.memory for one in candidates],
            sizes,
        ]
    )
