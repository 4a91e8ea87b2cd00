"""The order in which a loader gives its batches, and how to go on in the middle of an epoch. Called by ``_loop``.

The promise: an epoch opened again at batch *k* gives the batches that the first run would have given from *k* on.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sized
from typing import Any, TypeVar

from . import _rng
from ._values import bad_value

T = TypeVar("T")

# Cost of a forward-only batch relative to a training batch.
_FORWARD_ONLY = 0.4


def length(loader: Iterable[Any]) -> int | None:
    """Return the number of batches in an epoch, ``None`` if the loader cannot tell."""
    try:
        return len(loader)  # type: ignore[arg-type]
    except (TypeError, NotImplementedError):
        return None


def validation_batches(validation: Sized | None, loader: Iterable[Any]) -> float:
    """Return the cost of a validation in training batches; 0 without one.

    >>> validation_batches(range(30), range(100)), validation_batches(None, range(100))
    (12.0, 0.0)
    """
    if validation is None:
        return 0.0
    try:
        batches = len(validation)
    except (TypeError, NotImplementedError):
        raise bad_value("validation", type(validation).__name__, "a loader that has a length") from None
    size, of_training = getattr(validation, "batch_size", None), getattr(loader, "batch_size", None)
    return float(batches * _FORWARD_ONLY * (size / of_training if size and of_training else 1.0))


def snapshot(loader: Iterable[Any]) -> dict[str, Any]:
    """Return the state of every generator that decides about the coming batches."""
    return {
        "global": _rng.capture(),
        "own": [generator.get_state() for generator in _own_generators(loader)],
    }


def rewind(loader: Iterable[Any], state: dict[str, Any]) -> None:
    """Put back what ``snapshot`` returned."""
    _rng.restore(state["global"])
    generators = _own_generators(loader)
    if len(generators) != len(state["own"]):
        raise bad_value("loader", f"{len(generators)} generators", f"{len(state['own'])}, as in the checkpoint")
    for generator, own in zip(generators, state["own"], strict=True):
        generator.set_state(own)


def open_epoch(loader: Iterable[T], epoch: int) -> Iterator[T]:
    """Start an epoch from its first batch."""
    for sampler in _samplers(loader):
        set_epoch = getattr(sampler, "set_epoch", None)
        if callable(set_epoch):  # DistributedSampler and its like shuffle by it
            set_epoch(epoch)
    return iter(loader)


def reopen_epoch(
    loader: Iterable[T], epoch: int, skip: int, before: dict[str, Any], now: dict[str, Any]
) -> Iterator[T]:
    """Open an epoch as it was opened ``before``, pass over ``skip`` batches, and leave the generators as of ``now``."""
    if epoch > 0 and getattr(loader, "persistent_workers", False):
        # Workers that live on draw their seed once, in the first epoch. Draw it now, so that it is not drawn below.
        iter(loader)
    rewind(loader, before)
    iterator = open_epoch(loader, epoch)
    source = _index_source(iterator) or iterator
    for k in range(skip):
        try:
            next(source)
        except StopIteration:
            accepted = f"at least {skip}, as when the checkpoint was written"
            raise bad_value("batches in an epoch", k, accepted) from None
    if skip:  # at the very start of an epoch both states are the same, and opening it has drawn from them since
        rewind(loader, now)
    return iterator


def _index_source(iterator: Iterator[Any]) -> Iterator[Any] | None:
    """What feeds indices to a loader that reads samples in this process, so that skipped ones are never read.

    It is private to torch, so anything unexpected means: skip by reading.
    """
    dataloader = sys.modules.get("torch.utils.data.dataloader")
    in_process = getattr(dataloader, "_SingleProcessDataLoaderIter", None)
    kinds = getattr(dataloader, "_DatasetKind", None)
    if in_process is None or kinds is None or type(iterator) is not in_process:
        return None
    if getattr(iterator, "_dataset_kind", None) != kinds.Map:
        return None
    source = getattr(iterator, "_sampler_iter", None)
    return source if isinstance(source, Iterator) else None


def _samplers(loader: Iterable[Any]) -> Iterator[Any]:
    """The loader's samplers, and those that they take their samples from."""
    for name in ("sampler", "batch_sampler"):
        sampler = getattr(loader, name, None)
        while sampler is not None:
            yield sampler
            inner = getattr(sampler, "sampler", None)
            sampler = inner if inner is not sampler else None


def _own_generators(loader: Iterable[Any]) -> list[Any]:
    found = (getattr(holder, "generator", None) for holder in (loader, *_samplers(loader)))
    usable = (g for g in found if hasattr(g, "get_state") and hasattr(g, "set_state"))
    return list({id(g): g for g in usable}.values())  # loader and sampler mostly share one
