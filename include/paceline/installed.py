"""What installed packages add to Paceline: the entry points that they declare."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points

RUNTIMES, POLICIES = "paceline.runtimes", "paceline.policies"


@cache
def installed(group: str) -> Mapping[str, EntryPoint]:
    """Return the entry points of a group by name, in order. They are read once, because that takes a tenth of a second.

    >>> list(installed(RUNTIMES))
    ['docker', 'kubernetes', 'process']
    """
    return {one.name: one for one in sorted(entry_points(group=group), key=lambda one: one.name)}
