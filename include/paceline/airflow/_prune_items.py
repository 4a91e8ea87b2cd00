"""What ``paceline prune`` finds: an item that may be removed, or that is kept for a reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Literal, get_args

from paceline.errors import PacelineError

Kind = Literal["report", "output", "checkpoint", "version"]
KINDS: tuple[str, ...] = tuple(f"{kind}s" for kind in get_args(Kind))
"""The kinds, as users name them."""


def counted(number: int, noun: str) -> str:
    """Return a number with a noun in the singular or plural.

    >>> counted(1, "version"), counted(2, "version")
    ('1 version', '2 versions')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"


class KeptError(PacelineError):
    """Raised by the removal of an item that has come into use since it was found. Nothing is removed."""


@dataclass(frozen=True)
class Item:
    """A drift report, an output of a training, the copies of a checkpoint, or a version of a model.

    Parameters
    ----------
    kind:
        What it is.
    name:
        Path or URL of its folder, or the registry, the model and the number.
    used_at:
        When it was written, or for a version, when it was replaced as the champion, if that was later.
    size_bytes:
        Size of its files.
    reason:
        Why it may be removed, or why it is kept.
    remove:
        Removes it after another look at what uses it; raises KeptError if something does. ``None``: it is kept.
    """

    kind: Kind
    name: str
    used_at: datetime
    size_bytes: int
    reason: str
    remove: Callable[[], None] | None = None

    @property
    def age(self) -> timedelta:
        """The time since ``used_at``."""
        return datetime.now(timezone.utc) - self.used_at
