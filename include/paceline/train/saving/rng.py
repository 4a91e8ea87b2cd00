"""Captures and restores the states of random number generators as plain values, which load without unpickling.

Called by ``data`` at the start of an epoch and for checkpoints.
"""

from __future__ import annotations

import random
import sys
from typing import Any

from paceline.train._values import log


def capture() -> dict[str, Any]:
    """Return the states of the global generators of Python and, if imported, of torch, CUDA and numpy."""
    state: dict[str, Any] = {"python": generator_state(random)}
    torch = sys.modules.get("torch")
    if torch is not None:
        state["torch"] = torch.get_rng_state()
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            state["cuda"] = torch.cuda.get_rng_state_all()
    numpy = sys.modules.get("numpy")
    if numpy is not None and hasattr(numpy, "random"):
        state["numpy"] = generator_state(numpy.random)
    return state


def restore(state: dict[str, Any]) -> None:
    """Restore the states that ``capture`` returned."""
    restore_generator(random, state["python"])
    if "torch" in state:
        import torch

        # A state that was stored as JSON consists of numbers.
        torch.set_rng_state(torch.as_tensor(state["torch"], dtype=torch.uint8))
        if "cuda" in state:
            if torch.cuda.is_available() and torch.cuda.device_count() == len(state["cuda"]):
                torch.cuda.set_rng_state_all([torch.as_tensor(one, dtype=torch.uint8) for one in state["cuda"]])
            else:
                log("the CUDA random generators were not restored: the number of devices differs")
    if "numpy" in state:
        import numpy

        restore_generator(numpy.random, state["numpy"])


def is_generator(value: Any) -> bool:
    """Return whether ``value`` is a random number generator of Python, torch or numpy.

    >>> is_generator(random.Random(1)), is_generator(random)
    (True, False)
    """
    kinds: list[Any] = [random.Random]
    if (torch := sys.modules.get("torch")) is not None:
        kinds.append(torch.Generator)
    numpy = sys.modules.get("numpy")
    if numpy is not None and hasattr(numpy, "random"):
        kinds += numpy.random.Generator, numpy.random.RandomState
    return type(value) in kinds


def generator_state(generator: Any) -> Any:
    """Return the state of a generator of torch as a tensor, that of one of Python or numpy as plain values."""
    if hasattr(generator, "getstate"):
        version, internal, gauss_next = generator.getstate()
        return [version, list(internal), gauss_next]
    if not hasattr(generator, "get_state"):
        return _plain(generator.bit_generator.state)
    state = generator.get_state()
    if not isinstance(state, tuple):
        return state
    name, keys, position, has_gauss, cached = state
    return [str(name), keys.tolist(), int(position), int(has_gauss), float(cached)]


def restore_generator(generator: Any, state: Any) -> None:
    """Restore a state that ``generator_state`` returned."""
    if hasattr(generator, "getstate"):
        version, internal, gauss_next = state
        generator.setstate((version, tuple(internal), gauss_next))
        return
    if not hasattr(generator, "get_state"):
        generator.bit_generator.state = state
        return
    if isinstance(state, list) and isinstance(state[0], int):  # of torch, stored as JSON
        import torch

        state = torch.tensor(state, dtype=torch.uint8)
    if isinstance(state, list):
        import numpy

        name, keys, *others = state
        state = (name, numpy.array(keys, dtype=numpy.uint32), *others)
    generator.set_state(state)


def _plain(state: Any) -> Any:
    if isinstance(state, dict):
        return {name: _plain(value) for name, value in state.items()}
    return state.tolist() if hasattr(state, "tolist") else state


def for_rank(rank: int, done: int, state: dict[str, Any]) -> dict[str, Any]:
    """Return the states for a rank that continues from rank 0's ``state`` after ``done`` batches."""
    restore(state)
    reseed(rank, done)
    return capture()


def reseed(rank: int, done: int) -> None:
    """Seed the generators so that each process of the job draws different numbers."""
    import torch

    seed = (torch.initial_seed() + 1_000_003 * rank + done) % 2**63
    torch.manual_seed(seed)
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)
