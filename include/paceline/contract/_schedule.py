"""The result of ``ScheduleOperator``, the plan of a distributed training."""

from __future__ import annotations

from paceline.contract._record import Record, Text


class Shard(Record):
    """The samples of a worker."""

    samples: int
    batch_size: int
    sample_s: float
    """Seconds for one sample."""
    epoch_s: float


class MachineLoad(Record):
    """The shares of a machine's cores and memory that were in use before the training."""

    cpu: float
    memory: float


class ScheduleResult(Record):
    """The workers that train, by name, the workers that do not, and the predicted durations."""

    workers: dict[Text, Shard]
    excluded: dict[Text, Text]
    """Reasons by name."""
    epoch_s: float
    """Seconds until the slowest worker finishes its shard once."""
    total_s: float
    """Seconds until the slowest worker finishes all epochs, with the transfer of data."""
    states: dict[Text, MachineLoad]
