"""Settings of the runtimes that run an operator's jobs: the base class, those of Paceline, and the lookup by name.

Another package adds a runtime with a subclass of ``RuntimeSettings`` and an entry point in the group
``paceline.runtimes``.
"""

from ._base import RuntimeSettings
from ._docker import Docker
from ._installed import installed_runtimes, named_settings, runtime_value, stored_settings
from ._kubernetes import Kubernetes
from ._process import Process

__all__ = [
    "Docker",
    "Kubernetes",
    "Process",
    "RuntimeSettings",
    "installed_runtimes",
    "named_settings",
    "runtime_value",
    "stored_settings",
]
