"""Training in one process: reads the loader epoch by epoch. The default source of batches in ``_session``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ._source import BatchSource
from .saving import data
from .saving.checkpoint import Resume


class SingleProcess(BatchSource):
    """The batches of the loader itself."""

    def passes(self, resume: Resume | None) -> Iterator[Iterator[Any]]:
        """Yield the batches of each epoch."""
        while not self._loop.over:
            yield self.begin_epoch(resume)
            resume = None
            self._loop.end_epoch()

    def begin_epoch(self, resume: Resume | None, number: int | None = None) -> Iterator[Any]:
        """Return the batches of the loop's epoch, from the position of ``resume`` on.

        ``number`` is what samplers with ``set_epoch`` receive, by default the number counted from 0.
        """
        loop = self._loop
        number = loop.epoch if number is None else number
        if resume is None:
            self.epoch_start = data.snapshot(loop.loader)
            return data.start_epoch(loop.loader, number)
        self.epoch_start = resume.epoch_start
        return data.resume_epoch(loop.loader, number, resume)
