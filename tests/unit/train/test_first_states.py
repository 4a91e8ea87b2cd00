"""A script that draws without a seed before its loop draws the same numbers after a restart."""

import os
import subprocess
import sys
from types import SimpleNamespace

import numpy
import pytest

from paceline.train.saving import first_states

from .machines import INCLUDE, LIMIT_S

SCRIPT = """
import os, random, sys
{imports}
print([random.random(), numpy.random.rand(), torch.rand(1).item()], flush=True)
checkpoint(model=torch.nn.Linear(1, 1))
for batch in track(range(4)):
    if sys.argv[1:] == ["dies"] and batch == 2:
        os.kill(os.getpid(), 9)
"""
TRAINER = "from paceline.train import checkpoint, track"
LIBRARIES = "import numpy, torch"


def numbers_before_the_loop(folder, imports, *options):
    (folder / "train.py").write_text(SCRIPT.format(imports="\n".join(imports)))
    names = {name: str(folder / name.lower()) for name in ("PACELINE_OUTPUT", "PACELINE_CHECKPOINT")}
    environment = {**os.environ, "PYTHONPATH": str(INCLUDE), **names}
    command = [sys.executable, folder / "train.py", *options]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    assert run.returncode == (-9 if options else 0), run.stderr
    return run.stdout.splitlines()[0]


@pytest.mark.parametrize("imports", [(TRAINER, LIBRARIES), (LIBRARIES, TRAINER)])
def test_restart_draws_the_same_numbers_before_the_loop(tmp_path, imports):
    first = numbers_before_the_loop(tmp_path, imports, "dies")
    assert numbers_before_the_loop(tmp_path, imports) == first
    (tmp_path / "paceline_checkpoint" / "random-states.json").write_text("damaged")
    assert numbers_before_the_loop(tmp_path, imports) != first


def test_seed_in_the_script_counts(tmp_path):
    seeded = (LIBRARIES, "torch.manual_seed(7); numpy.random.seed(7); random.seed(7)", TRAINER)
    first = numbers_before_the_loop(tmp_path, seeded, "dies")
    assert numbers_before_the_loop(tmp_path, seeded) == first
    other = tmp_path / "other"
    other.mkdir()
    assert numbers_before_the_loop(other, seeded) == first


@pytest.mark.parametrize("version", ["1.23", "1.24"])
def test_seed_of_an_older_numpy_is_stored(monkeypatch, version):
    """Before numpy 1.25 the seed of a generator, and before 1.24 also the generator, has only a private name."""
    generator = SimpleNamespace(_seed_seq=numpy.random.SeedSequence(5))
    if version == "1.23":
        monkeypatch.delattr(numpy.random, "get_bit_generator")
        monkeypatch.setattr(numpy.random.mtrand, "_rand", SimpleNamespace(_bit_generator=generator))
    else:
        monkeypatch.setattr(numpy.random, "get_bit_generator", lambda: generator)
    monkeypatch.setattr(first_states, "_states", {"torch": ()})
    assert first_states._seeds_of_later_imports() == {"numpy_entropy": 5}
