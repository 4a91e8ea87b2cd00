"""Starts an epoch of a loader at any batch and restores the order of the data. Used by ``_alone`` and ``parallel``.

Invariant: an epoch resumed at batch *k* yields the same batches from *k* on as an uninterrupted epoch.
"""

from __future__ import annotations

import atexit
import gc
import sys
import weakref
from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import Any, TypeVar

from paceline.train._values import bad_value, log

from . import rng
from .checkpoint import Resume

T = TypeVar("T")

# Cost of a forward-only batch relative to a training batch.
_FORWARD_ONLY_COST = 0.4


def epoch_length(loader: Iterable[Any]) -> int | None:
    """Return the number of batches in an epoch, ``None`` for a loader without a length."""
    try:
        return len(loader)  # type: ignore[arg-type]
    except (TypeError, NotImplementedError):
        return None


def validation_batches(validation: Sized | None, loader: Iterable[Any]) -> float:
    """Return the number of training batches that take as long as a validation; 0 without a validation.

    >>> validation_batches(range(30), range(100)), validation_batches(None, range(100))
    (12.0, 0.0)
    """
    if validation is None:
        return 0.0
    try:
        batches = len(validation)
    except (TypeError, NotImplementedError):
        raise bad_value("validation", type(validation).__name__, "a loader with a length") from None
    return forward_batches(batches, getattr(validation, "batch_size", None), getattr(loader, "batch_size", None))


def forward_batches(batches: float, size: int | None, training_size: int | None) -> float:
    """Return the number of training batches that take about as long as ``batches`` passes without gradients.

    Without the sizes of the batches, they count as equal.

    >>> forward_batches(30, 64, 32)
    24.0
    """
    return float(batches * _FORWARD_ONLY_COST * (size / training_size if size and training_size else 1.0))


def snapshot(loader: Iterable[Any]) -> dict[str, Any]:
    """Return the state of every random number generator that affects the coming batches."""
    return {
        "global": rng.capture(),
        "own": [rng.generator_state(generator) for generator in _loader_generators(loader)],
        "others": [rng.generator_state(generator) for generator in _other_generators(loader)],
    }


def rewind(loader: Iterable[Any], state: dict[str, Any]) -> None:
    """Restore the random number generators from a ``snapshot``."""
    rng.restore(state["global"])
    generators = _loader_generators(loader)
    if len(generators) != len(state["own"]):
        raise bad_value("loader", f"{len(generators)} generators", f"{len(state['own'])}, as in the checkpoint")
    for generator, own in zip(generators, state["own"], strict=True):
        rng.restore_generator(generator, own)
    generators, stored = _other_generators(loader), state.get("others", ())  # earlier versions stored none
    if len(generators) == len(stored):
        for generator, own in zip(generators, stored, strict=True):
            rng.restore_generator(generator, own)
    else:  # in each epoch, a sampler may create its generator with the same seed
        log(
            f"the samplers have {len(generators)} random generators, and had {len(stored)}: the order of the data may "
            "differ from that before the restart, unless the samplers create their generators in __init__"
        )


class SharedGenerators:
    """The generators of the torch loaders that exist at the start of the first loop, which later loops may share.

    A restart, which skips the loops that are done, finds each generator by its state at that time.
    """

    def __init__(self) -> None:
        owned = (g for loader in torch_loaders() for g in (*_loader_generators(loader), *_other_generators(loader)))
        found = {id(generator): generator for generator in owned}
        self._begun = [(generator, rng.generator_state(generator)) for generator in found.values()]

    def capture(self) -> list[tuple[Any, Any]]:
        """Return the first and the current state of each generator."""
        return [(first, rng.generator_state(generator)) for generator, first in self._begun]

    def restore(self, captured: Sequence[Sequence[Any]]) -> None:
        """Give each generator its captured state, and say which one is unknown."""
        for first, state in captured:
            if _equal(first, state):
                continue
            own = [generator for generator, begun in self._begun if _equal(begun, first)]
            if len(own) == 1 == sum(_equal(other, first) for other, _ in captured):
                rng.restore_generator(own[0], state)
            else:
                log(
                    "the generator of a loader could not be restored, so a loop that shares it with a finished loop "
                    "has another order: seed the generator of each loader, with another number"
                )


def _equal(one: Any, other: Any) -> bool:
    return bool(one.equal(other)) if hasattr(one, "equal") and hasattr(other, "equal") else bool(one == other)


def set_epoch(loader: Iterable[Any], epoch: int) -> None:
    """Pass the number of the epoch to the loader and to those of its samplers that accept it.

    DistributedSampler and similar samplers seed their shuffle with the epoch. A loader of Accelerate passes the epoch
    to samplers that it wraps, and would otherwise count the epochs of this process.
    """
    for owner in (loader, *_samplers(loader)):
        setter = getattr(owner, "set_epoch", None)
        if callable(setter):
            setter(epoch)


def start_epoch(loader: Iterable[T], epoch: int) -> Iterator[T]:
    """Start an epoch at its first batch."""
    set_epoch(loader, epoch)
    return iter(loader)


def resume_epoch(loader: Iterable[T], epoch: int, resume: Resume) -> Iterator[T]:
    """Start an epoch at the position of ``resume``: restore the random states at its start, and skip batches."""
    if resume.position.epoch > 0 and getattr(loader, "persistent_workers", False):
        # Persistent loader workers draw their seed in the first iteration only: draw it before the rewind.
        iter(loader)
    rewind(loader, resume.epoch_start)
    iterator = start_epoch(loader, epoch)
    skip = resume.position.batch
    source = _index_iterator(iterator) or iterator
    for k in range(skip):
        try:
            next(source)
        except StopIteration:
            accepted = f"at least {skip}, as when the checkpoint was written"
            raise bad_value("batches in an epoch", k, accepted) from None
    if skip:  # if no batch was skipped, a rewind to ``now`` would undo the random draws at the start of the epoch
        rewind(loader, resume.now)
    return iterator


def is_torch_loader(item: object) -> bool:
    """Return whether ``item`` is a ``DataLoader``. Objects of lazy types are left alone."""
    torch_data = sys.modules.get("torch.utils.data")
    return torch_data is not None and issubclass(type(item), torch_data.DataLoader)


def torch_loaders() -> weakref.WeakSet[Any]:
    """Return all torch loaders of this process."""
    torch_data = sys.modules.get("torch.utils.data")
    if torch_data is None:
        return weakref.WeakSet()
    return weakref.WeakSet(item for item in gc.get_objects() if issubclass(type(item), torch_data.DataLoader))


def end_workers_at_exit(loader: Iterable[Any]) -> None:
    """End the loader's persistent worker processes as soon as this process exits.

    At exit, torch 2.11 and earlier wait 5 s for each persistent worker of a loader that pins memory
    (pytorch/pytorch#81794), so the job would end late. This handler runs before torch's. The iterator and its method
    are private attributes in torch.
    """
    end = getattr(getattr(loader, "_iterator", None), "_shutdown_workers", None)
    if end is not None:
        atexit.register(_call_if_alive, weakref.WeakMethod(end))


def _call_if_alive(method: weakref.WeakMethod[Any]) -> None:
    if (call := method()) is not None:
        call()


def _index_iterator(iterator: Iterator[Any]) -> Iterator[Any] | None:
    """Return the iterator over indices, to skip batches without reading them; ``None`` unless loading is in-process.

    The iterator over indices is a private attribute in torch. Without it, the caller reads and discards the batches.
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
    """Yield the loader's samplers and the samplers nested in them."""
    for name in ("sampler", "batch_sampler"):
        sampler = getattr(loader, name, None)
        while sampler is not None:
            yield sampler
            inner = getattr(sampler, "sampler", getattr(sampler, "batch_sampler", None))
            sampler = inner if inner is not sampler else None


def _generator_owners(loader: Iterable[Any]) -> list[Any]:
    # A sampler with ``set_epoch`` seeds its generator in each epoch, and Accelerate's sampler creates it only then.
    return [loader, *(sampler for sampler in _samplers(loader) if not hasattr(sampler, "set_epoch"))]


def _loader_generators(loader: Iterable[Any]) -> list[Any]:
    generators = (getattr(owner, "generator", None) for owner in _generator_owners(loader))
    usable = (g for g in generators if hasattr(g, "get_state") and hasattr(g, "set_state"))
    return list({id(g): g for g in usable}.values())  # a loader and its sampler usually share a generator


def _other_generators(loader: Iterable[Any]) -> list[Any]:
    """Return the generators in attributes of other names or of other kinds than those of torch's own samplers."""
    known = {id(generator) for generator in _loader_generators(loader)}
    values = (value for owner in _generator_owners(loader) for value in getattr(owner, "__dict__", {}).values())
    return list({id(g): g for g in values if rng.is_generator(g) and id(g) not in known}.values())
