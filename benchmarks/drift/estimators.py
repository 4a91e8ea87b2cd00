"""The compared estimators of errors without labels, each as a function that prepares it for a reference.

``benchmarks.drift.adapter`` calls them in the tools' environments, so this module imports Paceline only in functions.
Frames have the columns ``prediction``, ``actual`` and features.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

# Returns the estimated error of a window, and whether the estimate is an alarm. It does not use the column ``actual``.
Estimate = Callable[[pd.DataFrame], tuple[float, bool]]
# Returns the estimated error of a window, half the width of its interval (two standard errors), and whether the tool
# calls the estimate unreliable.
Interval = Callable[[pd.DataFrame], tuple[float, float, bool]]
# Probabilities of at least this are class 1.
THRESHOLD = 0.5
# Data sets in NannyML's package: the kinds of error, the loader, the columns of the prediction and the label, and other
# columns that are no features. NannyML's "work from home" has the values of the car loans under other names.
DATA_SETS = {
    "car loans": (("wrong", "auc"), "load_synthetic_car_loan_dataset", "y_pred_proba", "repaid"),
    "Californian houses": (
        ("wrong", "auc"),
        "load_modified_california_housing_dataset",
        "y_pred_proba",
        "clf_target",
    ),
    "employment": (("wrong", "auc"), "load_us_census_ma_employment_data", "predicted_probability", "employed"),
    "car prices": (("absolute",), "load_synthetic_car_price_dataset", "y_pred", "y_true"),
}
_NO_INPUTS = ("prediction", "actual", "time")
_NO_FEATURES = ["id", "timestamp", "year", "y_pred", "prediction"]


def export_data_sets(folder: Path) -> dict[str, int]:
    """Write NannyML's data sets to ``folder/NAME`` as Parquet; return their numbers of current rows."""
    import nannyml as nml

    rows = {}
    for name, (_, loader, prediction, actual) in DATA_SETS.items():
        reference, current, labels = getattr(nml, loader)()
        current = current.merge(labels, on="id")
        (folder / name).mkdir(parents=True)
        for window, frame in (("reference", reference), ("current", current)):
            unused = [column for column in _NO_FEATURES if column in frame and column != prediction]
            renamed = frame.drop(columns=unused).rename(columns={prediction: "prediction", actual: "actual"})
            renamed.to_parquet(folder / name / f"{window}.parquet", index=False)
        rows[name] = len(current)
    return rows


def prepare_paceline(kind: str, reference: pd.DataFrame, rows: int) -> Estimate:
    """Estimate with Paceline's defaults. An estimate is part of a whole check, with the tests of all features."""
    from paceline.drift import DriftSettings, compare

    settings = DriftSettings(error=kind, threshold=THRESHOLD)  # type: ignore[arg-type,unused-ignore]

    def estimate(current: pd.DataFrame) -> tuple[float, bool]:
        unlabelled = current.drop(columns="actual")
        report = compare(reference, unlabelled, prediction="prediction", actual="actual", settings=settings)
        assert report.estimate is not None
        assert report.estimate.error is not None
        return report.estimate.error, report.estimate.verdict == "drift"

    return estimate


def paceline_intervals(kind: str, reference: pd.DataFrame, rows: int) -> Interval:
    """Estimate with Paceline's defaults and, if there is one, the column ``time``."""
    from paceline.drift import DriftSettings, compare

    settings = DriftSettings(error=kind, threshold=THRESHOLD)  # type: ignore[arg-type,unused-ignore]
    columns = [name for name in reference if name not in _NO_INPUTS]

    def estimate(current: pd.DataFrame) -> tuple[float, float, bool]:
        report = compare(
            reference,
            current.drop(columns="actual"),
            columns=columns,
            prediction="prediction",
            actual="actual",
            time="time" if "time" in reference else None,
            settings=settings,
        )
        found = report.estimate
        assert found is not None
        assert found.error is not None
        assert found.standard_error is not None
        return found.error, 2 * found.standard_error, bool(found.warning)

    return estimate


def nannyml_intervals(kind: str, reference: pd.DataFrame, rows: int) -> Interval:
    """Estimate with NannyML's defaults and two sampling errors. NannyML never calls an estimate unreliable."""
    result_of, metric = _nannyml_results(kind, reference, rows)

    def estimate(current: pd.DataFrame) -> tuple[float, float, bool]:
        result = result_of(current)
        value = result["value"] if metric == "mae" else 1 - result["value"]
        return value, 2 * result["sampling_error"], False

    return estimate


def prepare_nannyml(kind: str, reference: pd.DataFrame, rows: int) -> Estimate:
    """Estimate with NannyML's defaults.

    An alarm is an estimate that is worse than the mean of the reference's chunks of ``rows`` rows by three standard
    deviations.
    """
    result_of, metric = _nannyml_results(kind, reference, rows)

    def estimate(current: pd.DataFrame) -> tuple[float, bool]:
        result = result_of(current)
        if metric == "mae":
            return result["value"], result["value"] > result["upper_threshold"]
        return 1 - result["value"], result["value"] < result["lower_threshold"]

    return estimate


def _nannyml_results(
    kind: str, reference: pd.DataFrame, rows: int
) -> tuple[Callable[[pd.DataFrame], dict[str, Any]], str]:
    """Return a function that returns NannyML's result for a window, and the name of the metric."""
    import nannyml as nml

    metric = {"wrong": "accuracy", "auc": "roc_auc", "absolute": "mae"}[kind]

    def convert(frame: pd.DataFrame) -> pd.DataFrame:
        return frame.assign(predicted=(frame["prediction"] >= THRESHOLD).astype(int))

    common: dict[str, Any] = {"y_true": "actual", "metrics": [metric], "chunk_size": rows}
    if kind == "absolute":
        features = [str(name) for name in reference if name not in _NO_INPUTS]
        estimator: Any = nml.DLE(feature_column_names=features, y_pred="prediction", **common)
    else:
        estimator = nml.CBPE(
            problem_type="classification_binary", y_pred_proba="prediction", y_pred="predicted", **common
        )
    estimator.fit(convert(reference))

    def result_of(current: pd.DataFrame) -> dict[str, Any]:
        unlabelled = convert(current.drop(columns="actual"))
        [result] = estimator.estimate(unlabelled).filter(period="analysis").to_df()[metric].to_dict("records")
        return dict(result)

    return result_of, metric


ESTIMATORS: dict[str, tuple[str, Callable[[str, pd.DataFrame, int], Estimate]]] = {
    "paceline": ("Paceline", prepare_paceline),
    "nannyml": ("NannyML", prepare_nannyml),
}


INTERVALS: dict[str, Callable[[str, pd.DataFrame, int], Interval]] = {
    "paceline": paceline_intervals,
    "nannyml": nannyml_intervals,
}


def realise(kind: str, reference: pd.DataFrame, current: pd.DataFrame, tool: str) -> float:
    """Return the error according to the labels.

    Paceline's ranking error compares the scores with those of the reference, NannyML's is 1 - AUC within the window.
    """
    if kind == "absolute":
        return float((current["prediction"] - current["actual"]).abs().mean())
    if kind == "wrong":
        return float(((current["prediction"] >= THRESHOLD) != (current["actual"] == 1)).mean())
    if tool == "nannyml":
        from sklearn.metrics import roc_auc_score

        return 1 - float(roc_auc_score(current["actual"], current["prediction"]))
    from paceline.drift.prediction_errors import compute_errors

    errors = compute_errors(reference, current, "prediction", "actual", error="auc").current
    return sum(float(errors[(current["actual"] == label).to_numpy()].mean()) for label in (0, 1)) / 2
