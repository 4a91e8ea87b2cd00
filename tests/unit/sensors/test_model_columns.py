"""Predictions and labels from files and databases: other types of the same values, and probabilities by class."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from paceline.errors import InvalidInputError
from paceline.sensors import DriftEventTrigger, DriftSensor
from paceline.sensors.check import DriftCheck

COLUMNS = {"cat": "p_cat", "dog": "p_dog", "bird": "p_bird"}


def make_rows(seed: int, wrong: float) -> pd.DataFrame:
    """Return probabilities of three classes, the label, and whether it is a cat."""
    rng = np.random.default_rng(seed)
    label = rng.integers(0, 3, 400)
    predicted = np.where(rng.random(400) < wrong, (label + 1) % 3, label)
    probabilities = dict(zip(COLUMNS.values(), (0.2 + 0.4 * np.eye(3)[predicted]).T, strict=True))
    columns = {"label": np.array([*COLUMNS])[label], "is_cat": label == 0, "guess": predicted == 0}
    return pd.DataFrame({"age": rng.normal(size=400), **probabilities, **columns})


def write_windows(folder: Path, ending: str, *frames: pd.DataFrame) -> dict[str, str]:
    paths = {name: folder / f"{name}{ending}" for name in ("reference", "current")}
    for path, frame in zip(paths.values(), frames, strict=True):
        if ending == ".parquet":
            frame.to_parquet(path)
        else:
            frame.to_csv(path, index=False)
    return {name: str(path) for name, path in paths.items()}


def test_decimals_of_a_parquet_file_equal_true_and_false(tmp_path: Path) -> None:
    frames = [make_rows(seed, wrong) for seed, wrong in ((0, 0.1), (1, 0.5))]
    shares = [float((frame["guess"] != frame["is_cat"]).mean()) for frame in frames]
    written = [frame.assign(guess=[Decimal(f"{value:d}.00") for value in frame["guess"]]) for frame in frames]
    windows = write_windows(tmp_path, ".parquet", *written)
    report = DriftCheck(**windows, features=["age"], prediction="guess", actual="is_cat").run()
    assert report.concept is not None
    assert report.drifted_parts == ["(concept)"]
    assert [report.concept.error_reference, report.concept.error_current] == shares


def test_text_of_probabilities_in_a_database_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(sqlite3.connect(tmp_path / "store.db")) as database, database:
        for name, seed, wrong in (("before", 0, 0.1), ("after", 1, 0.5)):
            make_rows(seed, wrong).astype({"p_cat": str}).to_sql(name, database, index=False)
    monkeypatch.setenv("AIRFLOW_CONN_STORE", json.dumps({"conn_type": "sqlite", "host": str(tmp_path / "store.db")}))
    queries = {"reference": "SELECT * FROM before", "current": "SELECT * FROM after"}
    report = DriftCheck(**queries, conn_id="store", features=["age"], prediction="p_cat", actual="is_cat").run()
    assert report.concept is not None
    assert report.concept.measure == "Brier score"
    assert report.drifted_parts == ["(concept)"]


def test_labels_of_a_csv_file_that_never_match_are_refused(tmp_path: Path) -> None:
    frames = [make_rows(seed, 0.1).replace({"is_cat": {True: "yes", False: "no"}}) for seed in (0, 1)]
    check = DriftCheck(**write_windows(tmp_path, ".csv", *frames), prediction="guess", actual="is_cat")
    with pytest.raises(
        InvalidInputError, match=r"'guess' has '0', '1' and 'is_cat' has 'no', 'yes', which never match"
    ):
        check.run()


@pytest.mark.parametrize("ending", [".parquet", ".csv"])
def test_probabilities_by_class_are_read_and_compared(tmp_path: Path, ending: str) -> None:
    windows = write_windows(tmp_path, ending, make_rows(0, 0.1), make_rows(1, 0.5))
    check = DriftCheck(**windows, features=["age"], prediction=COLUMNS, actual="label")
    report, window = check.measure()
    assert sorted(window.frame.columns) == sorted(["age", *COLUMNS.values(), "label"])
    assert report.drifted_parts == ["(concept)"]
    assert report.concept is not None
    assert report.concept.measure == "Brier score"


def test_probabilities_by_class_survive_the_triggers_json() -> None:
    named: dict[Any, str] = {0: "p_cat", True: "p_dog"}
    options: dict[str, Any] = {"reference": "a.csv", "current": "b.csv", "prediction": named, "actual": "label"}
    _, kwargs = DriftEventTrigger(**options).serialize()
    again = DriftEventTrigger(**json.loads(json.dumps(kwargs)))
    assert again.check.prediction == {"0": "p_cat", "1": "p_dog"}
    assert again.serialize()[1] == kwargs
    sensor = DriftSensor(task_id="drift", **options)
    assert sensor._check().to_dict()["prediction"] == again.check.prediction


def test_list_of_columns_is_refused_when_the_dag_is_parsed() -> None:
    with pytest.raises(
        InvalidInputError, match=r"^prediction: got \['p_cat', 'p_dog'\], expected the name of a column"
    ):
        DriftSensor(
            task_id="drift",
            reference="a.csv",
            current="b.csv",
            prediction=["p_cat", "p_dog"],  # type: ignore[arg-type]
            actual="label",
        )
