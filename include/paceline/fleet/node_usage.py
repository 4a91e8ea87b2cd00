"""The usage of a node of a Kubernetes cluster, for schedules and profiles.

Only the CPU time counts: the cluster reserves the memory of each pod, so the memory of others does not affect it.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.errors import RuntimeUnavailableError
from paceline.fleet import _usage_program
from paceline.fleet._machine import Machine
from paceline.runtime import Job, JobSpec, Usage

if TYPE_CHECKING:
    from paceline.runtime.kubernetes import KubernetesRuntime

_PROGRAM = Path(_usage_program.__file__)
_DEVICES, _MEMORY_BYTES = 0.1, 128 * 1024**2
_ANSWER_S = 30.0


class NodeUsage:
    """Reads the usage of a whole node, in a small pod on it, which needs no rights of its own.

    Parameters
    ----------
    runtime:
        Runtime in the cluster of the node.
    spec:
        The pod's name, image, user and labels.
    machine:
        The node, or a node of the machine's pool.
    apart:
        Name of a group of machines: those of a pool are then different nodes.

    Raises
    ------
    RuntimeUnavailableError
        If the pod does not start on the node.
    InvalidInputError
        If there is no such node.
    """

    def __init__(self, runtime: KubernetesRuntime, spec: JobSpec, machine: Machine, apart: str | None = None) -> None:
        small = replace(spec, devices=_DEVICES, memory_bytes=_MEMORY_BYTES, gpus=0, options=machine.job_options(apart))
        self._job: Job = runtime.start(
            replace(small, command=["python", "-u", _PROGRAM.name], files={_PROGRAM.name: _PROGRAM})
        )
        try:
            node = runtime.node_of(self._job)
        except BaseException:
            self._job.remove()
            raise
        self.machine = machine.model_copy(update={"node": node, "node_selector": None})

    def read(self) -> Usage:
        """Return the CPU time at the pod's next measurement, within a second."""
        self._job.read_lines()
        give_up_s = time.monotonic() + _ANSWER_S
        while time.monotonic() < give_up_s:
            has_ended = self._job.wait(_usage_program.EVERY_S / 5)
            for line in reversed(self._job.read_lines()):
                if line.startswith("{"):
                    return Usage(memory_bytes=0, **json.loads(line))
            if has_ended:
                break
        status = self._job.status()
        reason = status.reason or "it reports no usage"
        raise RuntimeUnavailableError(f"cannot measure the node {self.machine.node}: {reason}")

    def close(self) -> None:
        """Remove the pod."""
        self._job.remove()
