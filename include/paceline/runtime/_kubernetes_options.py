"""``KubernetesOptions``: what only ``KubernetesRuntime`` knows about a job. Set by fleets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class KubernetesOptions:
    """The ``options`` of a ``JobSpec`` for ``KubernetesRuntime``.

    Parameters
    ----------
    node:
        Name of the node that runs the pod; ``None`` for any node.
    node_selector:
        Labels of the nodes that may run the pod.
    apart:
        Name of a group of pods, each of which runs on another node; ``None`` for no group.
    """

    node: str | None = None
    node_selector: Mapping[str, str] = field(default_factory=dict)
    apart: str | None = None

    @classmethod
    def of(cls, options: object | None) -> KubernetesOptions:
        """Return the options; the defaults if they are ``None``, or those of another runtime."""
        return options if isinstance(options, cls) else cls()
