"""The time that the training code needs after its last batch, as it declares it. Used by ``_loop``."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ._values import bad_value


@dataclass(frozen=True)
class Tail:
    """A declared tail: seconds, and a share of an epoch.

    Examples
    --------
    >>> Tail.read(6).seconds(batch_s=None, epoch_batches=100)
    6.0
    >>> Tail.read("20%").seconds(batch_s=0.5, epoch_batches=100)
    10.0
    """

    fixed_s: float = 0.0
    epochs: float = 0.0

    @classmethod
    def read(cls, value: object) -> Tail:
        """Read the argument ``tail``. Raises ``ValueError`` for anything but seconds or a percentage."""
        is_share = isinstance(value, str) and value.strip().endswith("%")
        try:
            number = float(str(value).strip().removesuffix("%") if is_share else value)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            number = math.nan
        if isinstance(value, bool) or not 0 <= number < math.inf or (isinstance(value, str) and not is_share):
            raise bad_value("tail", value, 'seconds, or a share of an epoch as text, such as "20%"')
        return cls(epochs=number / 100) if is_share else cls(fixed_s=number)

    def seconds(self, batch_s: float | None, epoch_batches: int) -> float | None:
        """Return the tail in seconds; ``None`` while the seconds per batch are unknown."""
        if not self.epochs:
            return self.fixed_s
        return None if batch_s is None else round(self.epochs * epoch_batches * batch_s, 3)
