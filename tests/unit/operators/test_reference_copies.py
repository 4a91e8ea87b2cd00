"""From a drift check to the evaluation and back: the check after a promotion reads the copy in the registry.

The sensor's check, the operators and the registry are real; the models are not scored.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
from tests.unit.registry.stores import Store

from paceline.errors import InvalidInputError
from paceline.operators import EvaluateOperator, PromoteOperator
from paceline.operators.improvement import ResampleCollector
from paceline.registry import base
from paceline.sensors.check import DriftCheck
from paceline.sensors.reports import summarise

Train = Callable[[Any], Any]
in_a_folder = pytest.mark.parametrize("store", ["local"], indirect=True)


@pytest.fixture
def train(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Train:
    """Return a function that evaluates and promotes a model of the given ``data_window``."""
    store.forget("flights")
    scores = iter((0.7, 0.8, 0.9))
    monkeypatch.setattr(EvaluateOperator, "open_runtime", lambda self, settings: None)
    monkeypatch.setattr(
        EvaluateOperator, "_score", lambda self, *_: ({"auc": next(scores)}, ResampleCollector(self.metric))
    )
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights").write_text("1")
    (tmp_path / "holdout.csv").write_text("x\n1\n")

    def run(data_window: Any) -> Any:
        evaluate = EvaluateOperator(
            task_id="evaluate",
            model="flights",
            registry=store.location,
            challenger=str(tmp_path / "model"),
            data={"holdout.csv": str(tmp_path / "holdout.csv")},
            script=__file__,  # which the fixture does not run
            metric="auc",
            data_window=data_window,
            runtime="process",
        )
        ti = SimpleNamespace(dag_id="dag", run_id="run", task_id="evaluate", map_index=-1, xcom_push=Mock())
        evaluation = evaluate.execute({"ti": ti})  # type: ignore[typeddict-item]
        promote = PromoteOperator(task_id="promote", evaluation=evaluation, registry=store.location)
        result = promote.execute({"ti": Mock(spec=["xcom_push"])})  # type: ignore[typeddict-item]
        assert result["promoted"]
        return result

    return run


def write_rows(path: Path, mean: float) -> str:
    path.parent.mkdir(exist_ok=True)
    pd.DataFrame({"usage": np.random.default_rng(int(mean)).normal(mean, 1, 500)}).to_parquet(path, index=False)
    return str(path)


def check_of(store: Store, current: str) -> DriftCheck:
    return DriftCheck("champion", current, model="flights", registry=store.location)


def test_drift_checks_after_the_reports_were_deleted_compare_with_the_copy(
    store: Store, train: Train, tmp_path: Path
) -> None:
    check = check_of(store, write_rows(tmp_path / "current.parquet", 0))
    reports = tmp_path / "reports"
    window = summarise(check, *check.measure(), str(reports)).to_json()["window"]
    assert window["source"].startswith(str(reports))
    train(window)
    shutil.rmtree(reports)
    report = check.run()
    assert (report.verdict, report.reference_rows) == ("no drift", 500)
    assert report.reference == f"training data of flights version 1: {window['source']}"
    write_rows(tmp_path / "current.parquet", 3)
    assert check.run().verdict == "drift"


@in_a_folder
def test_reference_stays_that_of_the_training_if_its_file_is_replaced(
    store: Store, train: Train, tmp_path: Path
) -> None:
    trained = write_rows(tmp_path / "trained.parquet", 0)
    train({"source": trained})
    write_rows(tmp_path / "trained.parquet", 3)
    assert check_of(store, write_rows(tmp_path / "current.parquet", 0)).run().verdict == "no drift"


@in_a_folder
@pytest.mark.parametrize("problem", ["missing", "folder", "too large"])
def test_version_whose_reference_cannot_be_copied_keeps_the_path_and_the_task_warns(
    store: Store,
    train: Train,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    problem: str,
) -> None:
    path = tmp_path / "trained.parquet"
    if problem == "folder":
        write_rows(path / "part.parquet", 0)
    elif problem == "too large":
        write_rows(path, 0)
        monkeypatch.setattr(base, "MAX_REFERENCE_BYTES", 100)
    train({"source": str(path)})
    assert f"The registry gets no copy of the training data in {path} (" in capsys.readouterr().out
    champion = store.open().champion("flights")
    assert champion is not None
    assert champion.reference is None
    assert champion.data_window == {"source": str(path)}
    if problem != "missing":
        assert check_of(store, write_rows(tmp_path / "current.parquet", 0)).run().verdict == "no drift"


@in_a_folder
@pytest.mark.parametrize("window", [{"source": "SELECT usage FROM flights", "conn_id": "store"}, {"days": "July"}, {}])
def test_window_without_a_file_is_not_copied_and_leads_to_no_warning(
    store: Store, train: Train, capsys: pytest.CaptureFixture[str], window: Any
) -> None:
    train(window)
    assert "no copy of the training data" not in capsys.readouterr().out
    champion = store.open().champion("flights")
    assert champion is not None
    assert (champion.reference, champion.data_window) == (None, window)


def register_with_a_path(store: Store, tmp_path: Path, source: str) -> None:
    """Register and promote a version as an earlier release did: it has only the path of its training data."""
    store.open().register(tmp_path / "model", name="flights", data_window={"source": source})
    store.open().promote("flights", 1, reason="first")


def test_version_of_an_earlier_release_is_compared_while_its_file_exists(
    store: Store, train: Train, tmp_path: Path
) -> None:
    register_with_a_path(store, tmp_path, write_rows(tmp_path / "reports" / "window.parquet", 0))
    assert check_of(store, write_rows(tmp_path / "current.parquet", 0)).run().verdict == "no drift"


def test_missing_reference_names_the_version_the_registry_the_path_and_what_to_do(
    store: Store, train: Train, tmp_path: Path
) -> None:
    source = write_rows(tmp_path / "reports" / "window.parquet", 0)
    register_with_a_path(store, tmp_path, source)
    shutil.rmtree(tmp_path / "reports")
    with pytest.raises(InvalidInputError) as caught:
        check_of(store, write_rows(tmp_path / "current.parquet", 0)).run()
    message = str(caught.value)
    assert message.startswith(f"reference: got '{source}', expected a file that exists: the training data of ")
    assert f"the training data of flights version 1, the champion in {store.location}." in message
    assert message.endswith("or give reference= a query or a file instead of 'champion' until a newly trained version "
                            "is champion")  # fmt: skip


def test_missing_copy_names_the_version_the_registry_and_the_path(store: Store, train: Train, tmp_path: Path) -> None:
    train({"source": write_rows(tmp_path / "trained.parquet", 0)})
    champion = store.open().champion("flights")
    assert champion is not None
    assert champion.reference is not None
    (store.manifest(champion).parent / champion.reference.path).unlink()
    with pytest.raises(InvalidInputError) as caught:
        check_of(store, write_rows(tmp_path / "current.parquet", 0)).run()
    message = str(caught.value)
    assert f"{champion.reference.path}: got 'no file', expected the file named in the manifest: the tra" in message
    assert f"the training data of flights version 1, the champion in {store.location}." in message


@in_a_folder
def test_missing_file_of_another_reference_is_reported_without_a_champion(
    store: Store, train: Train, tmp_path: Path
) -> None:
    check = DriftCheck(str(tmp_path / "missing.csv"), write_rows(tmp_path / "current.parquet", 0))
    with pytest.raises(InvalidInputError, match=r"missing\.csv', expected a file that exists$"):
        check.run()
