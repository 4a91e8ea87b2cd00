"""The first states of the random number generators: the same in each process of a job and after each restart.

A script may draw without a seed before its loop, for example to split its data. A process that joins it, or the script
after a restart, must draw the same numbers. So the states at the import of ``paceline.train`` are stored, and restored
at the import in such a process. Called by the package, by ``checkpoint`` and by ``parallel``.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.train._values import log
from paceline.train.job import ENV_CHECKPOINT, ENV_FIRST_STATES, rank_count

from . import rng

_NAME = "random-states.json"
_states: dict[str, Any] = {}


def begin(environ: Mapping[str, str] = os.environ) -> None:
    """Restore the states that another process of the job has stored, if any; remember the states."""
    global _states
    multiprocessing = sys.modules.get("multiprocessing")
    is_pool_process = multiprocessing is not None and multiprocessing.parent_process() is not None
    _states = {} if is_pool_process or rank_count() > 1 else _read(environ)
    if _states:
        rng.restore(_states)
        _seed_later_imports(_states)
    else:
        _states = rng.capture()


def store(path: Path) -> None:
    """Write the remembered states to ``path``, unless it exists. Raises ``OSError`` if it cannot be written."""
    if path.exists():
        return
    states = _states | _seeds_of_later_imports()
    states.pop("cuda", None)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(json.dumps(states, default=lambda tensor: tensor.tolist()))
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def store_for_restart(environ: Mapping[str, str] = os.environ) -> None:
    """Write the remembered states into the job's checkpoint folder, if there is one; log if that fails."""
    if (folder := environ.get(ENV_CHECKPOINT)) and rank_count() == 1:
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
            store(Path(folder, _NAME))
        except OSError as error:
            log(f"a restart may draw other random numbers before the loop, because of {folder}: {error}")


def _read(environ: Mapping[str, str]) -> dict[str, Any]:
    folder = environ.get(ENV_CHECKPOINT)
    path = environ.get(ENV_FIRST_STATES) or (folder and Path(folder, _NAME))
    try:
        return dict(json.loads(Path(path).read_text())) if path else {}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        log(f"{path} is unusable, so the random numbers before the loop may differ from those before: {error}")
        return {}


def _seeds_of_later_imports() -> dict[str, Any]:
    """Return the seeds of the libraries that were imported after ``paceline.train``."""
    seeds: dict[str, Any] = {}
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and "torch" not in _states:
        seeds["torch_seed"] = torch.initial_seed()
    if numpy is not None and "numpy" not in _states:
        public = hasattr(numpy.random, "get_bit_generator")  # since numpy 1.24
        generator = numpy.random.get_bit_generator() if public else numpy.random.mtrand._rand._bit_generator
        sequence = generator.seed_seq if hasattr(generator, "seed_seq") else generator._seed_seq  # before numpy 1.25
        seeds["numpy_entropy"] = sequence and sequence.entropy  # None after `numpy.random.seed`
    return seeds


def _seed_later_imports(states: dict[str, Any]) -> None:
    if "torch_seed" in states:
        import torch

        torch.manual_seed(states["torch_seed"])
    if states.get("numpy_entropy") is not None:
        import numpy

        generator = numpy.random.MT19937(numpy.random.SeedSequence(states["numpy_entropy"]))
        numpy.random.set_state(dict(generator.state))
