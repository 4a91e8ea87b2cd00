"""NannyML and Evidently on the realised accuracy of windows. ``benchmarks.drift.adapter`` runs them.

This module is imported in the tools' environments, so it imports neither Paceline nor SciPy.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray


def realised_alarms(path: Path, tool: str) -> tuple[str, list[bool]]:
    """Return the tool's name and whether it reports a lower accuracy in each window. Runs in the tool's environment."""
    arrays = np.load(path)
    reference = _to_frame(arrays["reference"])
    found = [
        (_nannyml if tool == "nannyml" else _evidently)(reference, _to_frame(window)) for window in arrays["windows"]
    ]
    label = "NannyML, realised accuracy" if tool == "nannyml" else "Evidently, accuracy against the reference"
    return label, found


def _to_frame(errors: NDArray[np.float64]) -> pd.DataFrame:
    """Return labels and predictions with these errors."""
    actual = np.arange(len(errors)) % 2
    predicted = np.where(errors == 1, 1 - actual, actual)
    return pd.DataFrame({"actual": actual, "predicted": predicted, "score": predicted * 1.0})


def _nannyml(reference: pd.DataFrame, window: pd.DataFrame) -> bool:
    import nannyml as nml

    calculator = nml.PerformanceCalculator(
        metrics=["accuracy"],
        y_true="actual",
        y_pred="predicted",
        y_pred_proba="score",
        problem_type="classification_binary",
        chunk_size=len(window),
    ).fit(reference)
    [row] = calculator.calculate(window).filter(period="analysis").to_df()["accuracy"].to_dict("records")
    return bool(row["value"] < row["lower_threshold"])


def _evidently(reference: pd.DataFrame, window: pd.DataFrame) -> bool:
    from evidently import BinaryClassification, DataDefinition, Dataset, Report
    from evidently.metrics import Accuracy

    definition = DataDefinition(
        classification=[BinaryClassification(target="actual", prediction_labels="predicted")],
        categorical_columns=["actual", "predicted"],
    )
    after, before = (Dataset.from_pandas(frame[["actual", "predicted"]], definition) for frame in (window, reference))
    report = Report([Accuracy()], include_tests=True).run(after, before)
    return any(test["status"] == "FAIL" for test in report.dict()["tests"])
