"""The origin of a profile's measurements, which decides whether the profile is stale."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Origin:
    """The training job, machine and time of a measurement.

    Parameters
    ----------
    training:
        Fingerprint of the training code, the model and the image.
    cores, memory_gib, gpus:
        Size of the measured machine.
    measured_at:
        Time in ISO 8601 with a zone.
    """

    training: str
    cores: float
    memory_gib: float
    gpus: int
    measured_at: str
