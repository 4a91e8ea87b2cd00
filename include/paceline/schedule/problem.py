"""What is to be scheduled, and what has to be known for it: candidates, their state, estimates of their speed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from paceline.errors import InvalidInputError

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class State:
    """How busy a machine is, ``X`` in Deep-Edge: shares of its processor, its GPUs and its memory, from 0 to 1."""

    cpu: float = 0.0
    gpu: float = 0.0
    memory: float = 0.0


@dataclass(frozen=True)
class Candidate:
    """A worker that may train.

    Parameters
    ----------
    name, kind:
        As in the fleet.
    state:
        How busy it is before training.
    latency_s:
        The applications that run on it and how long one execution of each may take, ``delta`` of constraint (4).
    transfer_s:
        Seconds to carry one sample there.
    initialize_s:
        Seconds from then to the first batch.
    """

    name: str
    kind: str
    state: State = State()
    latency_s: Mapping[str, float] = field(default_factory=dict)
    transfer_s: float = 0.0
    initialize_s: float = 0.0


class Estimates(Protocol):
    """What profiles tell about candidates, for many of them at a time. See :mod:`paceline.profiles`."""

    def max_batch(self, candidates: Sequence[Candidate]) -> NDArray[np.int64]:
        """The largest batch that fits into each one's memory, ``GetMaxBatchSize``; 0 where not even one sample does."""

    def compute_s(self, candidates: Sequence[Candidate], batch: Floats) -> Floats:
        """Seconds to compute one sample in batches of that size, equation (5)."""

    def update_s(self, candidates: Sequence[Candidate], batch: Floats, server: State) -> Floats:
        """Seconds to push gradients, update and pull parameters when exactly these train, equation (6)."""

    def execution_s(self, candidates: Sequence[Candidate]) -> Sequence[Mapping[str, float]]:
        """Seconds for one execution of each application while training runs beside it, equations (7) and (8)."""


@dataclass(frozen=True)
class Problem:
    """A training to be scheduled.

    Parameters
    ----------
    samples:
        Number of samples, ``|M|``.
    candidates:
        The workers that may train, ``W``.
    server:
        How busy the parameter server is, ``X_ps``.
    epochs:
        How often all samples are gone through, ``numEpoch``.

    Raises
    ------
    InvalidInputError
        For fewer samples than workers, no worker, or two of one name.
    """

    samples: int
    candidates: Sequence[Candidate]
    server: State = State()
    epochs: int = 1

    def __post_init__(self) -> None:
        names = [candidate.name for candidate in self.candidates]
        if not names:
            raise InvalidInputError("workers", "none", "at least one worker")
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise InvalidInputError("workers", twice, "a name for each that no other has")
        if self.samples < len(names):
            raise InvalidInputError("samples", self.samples, f"at least one for each of {len(names)} workers")
        if self.epochs < 1:
            raise InvalidInputError("epochs", self.epochs, "a whole number of at least 1")
