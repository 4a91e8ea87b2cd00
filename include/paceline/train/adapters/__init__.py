"""Callbacks for libraries that own the training loop. Each module imports its library only when it is used."""

from ._fingerprint import fingerprint
from ._steps import Steps

__all__ = ["Steps", "fingerprint"]
