"""Creates the demo's initial state: production data, and a champion in the model registry.

The example's ``train.py`` trains the champion on the flights of January and February, in a local process.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from demo.store import fill_store, read_flights
from paceline.errors import PacelineError
from paceline.registry import FileRegistry

if TYPE_CHECKING:
    import pandas as pd

MODEL = "flights-late"
TRAINED_UNTIL = "2013-02-28"
# With more epochs the network would overfit the two months of data.
_EPOCHS = 2


@dataclass(frozen=True)
class Seed:
    """The number of flights in the store, and the champion's AUC in its first month of production."""

    flights: int
    champion_auc: float


def seed(store: Path, registry: FileRegistry, scripts: Path, scratch: Path) -> Seed:
    """Fill ``store``, and train, register and promote the first champion.

    Parameters
    ----------
    store:
        SQLite file to write.
    registry:
        FileRegistry for the champion.
    scripts:
        Folder with ``train.py`` and ``evaluate.py``.
    scratch:
        Folder for temporary files; the function removes it.
    """
    from sklearn.metrics import roc_auc_score

    flights = read_flights()
    scratch.mkdir(parents=True, exist_ok=True)
    try:
        model, predicted = _train(flights, scripts, scratch)
        march = flights["window"] == "2013-03"
        auc = float(roc_auc_score(flights["late"][march], predicted[march]))
        version = registry.register(
            model,
            name=MODEL,
            metrics={"auc": auc},
            data_window={"until": TRAINED_UNTIL},
            lineage={"made_by": "the demo", "measured_on": "2013-03"},
            key="demo",
        )
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    registry.promote(MODEL, version.version, "first champion of the demo")
    fill_store(store, flights, list(predicted))
    return Seed(len(flights), auc)


def _train(flights: pd.DataFrame, scripts: Path, scratch: Path) -> tuple[Path, pd.Series[float]]:
    """Train on the flights of January and February; return the model's folder and its predictions for all flights."""
    import pandas as pd

    for folder in ("train", "model", "all/data", "scores"):
        (scratch / folder).mkdir(parents=True, exist_ok=True)
    flights[flights["day"] <= TRAINED_UNTIL].to_csv(scratch / "train" / "train.csv", index=False)
    _run_script(scripts / "train.py", scratch / "train", scratch / "model", {"EPOCHS": str(_EPOCHS)})
    flights.to_csv(scratch / "all" / "data" / "holdout.csv", index=False)
    (scratch / "all" / "model").symlink_to(scratch / "model")
    _run_script(scripts / "evaluate.py", scratch / "all", scratch / "scores", {})
    return scratch / "model", pd.read_csv(scratch / "scores" / "predictions.csv")["predicted"]


def _run_script(script: Path, inputs: Path, output: Path, environment: dict[str, str]) -> None:
    finished = subprocess.run(
        [sys.executable, script.name],
        cwd=script.parent,
        env={
            **os.environ,
            "PACELINE_INPUT": str(inputs),
            "PACELINE_OUTPUT": str(output),
            "PACELINE_CHECKPOINT": str(output.parent / "checkpoint"),
            "PYTHONDONTWRITEBYTECODE": "1",
            # Airflow starts at the same time; more threads would slow down both processes.
            "OMP_NUM_THREADS": "1",
            **environment,
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if finished.returncode:
        raise PacelineError(f"{script.name} ended with exit code {finished.returncode}:\n{finished.stdout[-2000:]}")
