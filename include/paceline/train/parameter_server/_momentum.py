"""A worker's optimizers, with momentum that spans as many batches as on one machine. Used by ``worker``."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from torch.optim import Optimizer

_BATCHES = 10  # number of this worker's batches over which the other workers' batches are averaged


class FollowingMomentum:
    """The moving average of gradients in Adam and its relatives, adapted to the other workers' batches.

    The optimizer decays its average of the gradients by beta_1 in each of its steps. A worker makes one step while all
    workers train n batches, so its average would span n times as many batches, and old gradients would act on a state
    that many updates have changed since. Delayed updates already act like additional momentum (Mitliagkas et al.,
    "Asynchrony begets momentum", 2016). During a batch, beta_1 is therefore set to beta_1 ^ n: the decay of n steps on
    one machine. The weights of an average add up to 1, so the step size does not change, except in the first batches of
    a worker, in which n becomes known. With a single worker, n is 1.

    The momentum of SGD stays as it is: it is a sum, so a different decay would change the step size.

    Parameters
    ----------
    parts:
        The objects passed to ``checkpoint``; the class adapts the optimizers with ``betas`` among them.

    Examples
    --------
    >>> import torch
    >>> optimizer = torch.optim.Adam([torch.zeros(1)], betas=(0.9, 0.999))
    >>> momentum = FollowingMomentum({"optimizer": optimizer})
    >>> for done in (0, 8):  # this worker trains one of eight batches
    ...     momentum.begin_batch(done)
    ...     print(round(optimizer.param_groups[0]["betas"][0], 2))
    ...     momentum.end_batch()
    0.9
    0.43
    >>> optimizer.param_groups[0]["betas"]
    (0.9, 0.999)
    """

    def __init__(self, parts: Mapping[str, Any]) -> None:
        self._optimizers = list({id(part): part for part in parts.values() if isinstance(part, Optimizer)}.values())
        self._done: deque[int] = deque(maxlen=_BATCHES + 1)
        self._changed: list[tuple[dict[str, Any], Any, Any]] = []  # groups with their betas before and during the batch

    def begin_batch(self, done: int) -> None:
        """Adapt beta_1, before a batch of this worker when all workers have done ``done`` batches."""
        self.end_batch()
        self._done.append(done)
        if len(self._done) < 2:
            return
        # The mean changes slowly: the optimizer's correction of its first steps assumes a constant beta_1.
        batches = max((self._done[-1] - self._done[0]) / (len(self._done) - 1), 1.0)
        for group in (group for optimizer in self._optimizers for group in optimizer.param_groups if "betas" in group):
            before = group["betas"]
            group["betas"] = (before[0] ** batches, *before[1:])
            self._changed.append((group, before, group["betas"]))

    def end_batch(self) -> None:
        """Restore beta_1, unless the training code or a scheduler has set it during the batch."""
        for group, before, adapted in reversed(self._changed):
            if group["betas"] is adapted:
                group["betas"] = before
        self._changed.clear()
