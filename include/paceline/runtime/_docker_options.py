"""``DockerOptions``: what only ``DockerRuntime`` knows about a job. Set by ``Docker`` and by fleets."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.runtime.base import JobSpec


@dataclass(frozen=True)
class DockerOptions:
    """The ``options`` of a ``JobSpec`` for ``DockerRuntime``.

    Parameters
    ----------
    network:
        Network of the engine that the container joins; ``None`` for no network. A job of a team has its ``TeamNetwork``
        instead.
    cgroup_parent:
        Parent control group of the container, for a device that is only part of a machine.
    """

    network: str | None = None
    cgroup_parent: str | None = None

    @classmethod
    def of(cls, spec: JobSpec) -> DockerOptions:
        """Return the options of a job; the defaults if it has none, or those of another runtime."""
        return spec.options if isinstance(spec.options, cls) else cls()
