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
        loop = self._loop
        while not loop.over:
            if resume is None:
                self.epoch_start = data.snapshot(loop.loader)
                yield data.start_epoch(loop.loader, loop.epoch)
            else:
                self.epoch_start = resume.epoch_start
                yield data.resume_epoch(loop.loader, loop.epoch, resume)
            resume = None
            loop.end_epoch()
