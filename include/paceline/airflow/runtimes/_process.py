"""``Process``: settings of jobs as local processes of the worker."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from paceline.airflow.values import Reader, memory_bytes

from ._base import RuntimeSettings, gpu_amount, max_processes, size

if TYPE_CHECKING:
    from paceline.runtime import JobSpec, Runtime


@dataclass(frozen=True, kw_only=True)
class Process(RuntimeSettings):
    """Run the job as a local process of the worker, with the rights, the network and the Python of Airflow's user.

    Parameters
    ----------
    gpus:
        Number of GPUs for the job alone. With 0, the job may use all GPUs of the machine. A number below 1 is the
        largest share of the time of one GPU, of which other jobs may have the rest. Example: ``1``.
    memory:
        Memory limit, in bytes or as text; ``None`` for no limit. Example: ``"16g"``. (templated)
    max_processes:
        Maximum number of processes and threads, if the worker's user may create control groups. Example: ``1024``.
    disk:
        Limit on each file that the job writes, and on the collected output, in bytes or as text; ``None`` for no
        limit. Example: ``"50g"``. (templated)

    Examples
    --------
    >>> from paceline.operators import DeadlineTrainingOperator, Process
    >>> train = DeadlineTrainingOperator(
    ...     task_id="train", script="train.py", deadline="20m", runtime=Process(memory="16g")
    ... )
    >>> Process(gpus="all")
    Traceback (most recent call last):
    paceline.errors.InvalidInputError: runtime.gpus: got 'all', expected a whole number of GPUs, 0 for none, or a part \
of one, such as 0.25
    """

    name = "process"
    template_fields: ClassVar[Sequence[str]] = ("memory", "disk")
    readers: ClassVar[Mapping[str, Reader]] = {
        "gpus": gpu_amount,
        "memory": size,
        "max_processes": max_processes,
        "disk": size,
    }

    shares_gpus = True

    gpus: float = 0
    memory: int | str | None = "4g"
    max_processes: int = 512
    disk: int | str | None = "20g"

    def open(self) -> Runtime:
        """Return the runtime."""
        from paceline.runtime import ProcessRuntime

        return ProcessRuntime(max_output_bytes=memory_bytes("runtime.disk", self.disk) or sys.maxsize)

    def extend(self, spec: JobSpec) -> JobSpec:
        """Return the specification of a job with the GPUs and the limits."""
        return replace(
            spec,
            gpus=self.gpus,
            memory_bytes=memory_bytes("runtime.memory", self.memory),
            max_processes=self.max_processes,
            disk_bytes=memory_bytes("runtime.disk", self.disk),
        )
