"""The scheduling problem: candidates with their state, and the estimates that schedulers need."""

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
    """Load of a machine, ``X`` in Deep-Edge: utilisation of its CPU, GPUs and memory, from 0 to 1."""

    cpu: float = 0.0
    gpu: float = 0.0
    memory: float = 0.0


@dataclass(frozen=True)
class Candidate:
    """A worker that may take part in a training job.

    Parameters
    ----------
    name, kind:
        Name and kind of the worker's machine, as in the fleet.
    state:
        Load of the machine before training.
    latency_s:
        Latency limits of the machine's applications by name, in seconds per execution: ``delta`` of constraint (4).
    transfer_s:
        Seconds to transfer one sample to the worker.
    initialize_s:
        Seconds from the end of the transfer to the first batch.
    """

    name: str
    kind: str
    state: State = State()
    latency_s: Mapping[str, float] = field(default_factory=dict)
    transfer_s: float = 0.0
    initialize_s: float = 0.0


class Estimates(Protocol):
    """Vectorised estimates for candidates; :mod:`paceline.profiles` derives them from profiles."""

    def max_batch(self, candidates: Sequence[Candidate]) -> NDArray[np.int64]:
        """Return the largest batch that fits into each candidate's memory (``GetMaxBatchSize``); 0 if none fits."""

    def compute_s(self, candidates: Sequence[Candidate], batch: Floats) -> Floats:
        """Return the seconds to compute one sample in batches of the given sizes, equation (5)."""

    def update_s(self, candidates: Sequence[Candidate], batch: Floats, server: State) -> Floats:
        """Return the seconds to push gradients, update and pull parameters if these candidates train, equation (6)."""

    def execution_s(self, candidates: Sequence[Candidate]) -> Sequence[Mapping[str, float]]:
        """Return the seconds for one execution of each application during training, equations (7) and (8)."""


@dataclass(frozen=True)
class Problem:
    """A training job to schedule.

    Parameters
    ----------
    samples:
        Number of samples, ``|M|``.
    candidates:
        The workers that may take part, ``W``.
    server:
        Load of the parameter server, ``X_ps``.
    epochs:
        Number of epochs, ``numEpoch``.

    Raises
    ------
    InvalidInputError
        If there are no samples, no workers, or duplicate names.
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
            duplicate = next(name for name in names if names.count(name) > 1)
            raise InvalidInputError("workers", duplicate, "unique names")
        if self.samples < 1:
            raise InvalidInputError("samples", self.samples, "an integer of at least 1")
        if self.epochs < 1:
            raise InvalidInputError("epochs", self.epochs, "an integer of at least 1")
