"""The multivariate tests of Paceline and other tools, with several settings each.

Imported in each tool's own environment, so every function imports the tool it needs. River has no multivariate test.
alibi-detect's MMDDrift needs TensorFlow or PyTorch, which its environment lacks.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.drift.tools import SIGNIFICANCE, Test, Tool

# Rows of each window for kernels, because their matrix has a number for each pair of rows.
KERNEL_ROWS = 2000


def _paceline(reference: pd.DataFrame, rows: int) -> Test:
    from paceline.drift import compare

    return lambda current: ["defaults"] if compare(reference, current).drifted else []


def _encode(reference: pd.DataFrame, frame: pd.DataFrame) -> pd.DataFrame:
    """Return the columns as numbers with a mean of 0 and a standard deviation of 1; labels become their rank."""
    ranks = {label: rank for rank, label in enumerate(sorted(reference["carrier"].unique()))}
    before, after = (data.assign(carrier=data["carrier"].map(ranks)).astype(float) for data in (reference, frame))
    return (after - before.mean()) / before.std()


def _evidently_model(reference: pd.DataFrame, rows: int) -> Test:
    """Treat the columns as an embedding, Evidently's only kind of columns with multivariate tests."""
    from evidently.metrics.embeddings import ModelDriftMethod

    before = _encode(reference, reference)
    methods = {
        "defaults": ModelDriftMethod(),
        "bootstrap=True": ModelDriftMethod(bootstrap=True),
    }

    def test(current: pd.DataFrame) -> list[str]:
        after = _encode(reference, current)
        # The method adds a column to its arguments.
        return [name for name, method in methods.items() if method(after.copy(), before.copy())[1]]

    return test


def _evidently_mmd(reference: pd.DataFrame, rows: int) -> Test:
    from evidently.metrics.embeddings import MMDDriftMethod

    method, before = MMDDriftMethod(), _encode(reference, reference).head(KERNEL_ROWS)

    def test(current: pd.DataFrame) -> list[str]:
        return ["defaults"] if method(_encode(reference, current).head(KERNEL_ROWS), before)[1] else []

    return test


def _nannyml_pca(reference: pd.DataFrame, rows: int) -> Test:
    import nannyml

    calculator = nannyml.DataReconstructionDriftCalculator(list(reference), chunk_size=rows).fit(reference)

    def test(current: pd.DataFrame) -> list[str]:
        found = calculator.calculate(current).filter(period="analysis").to_df()
        return ["defaults"] if found["reconstruction_error", "alert"].any() else []

    return test


def _nannyml_classifier(reference: pd.DataFrame, rows: int) -> Test:
    """Compare the AUC with NannyML's constant, and with the mean plus three deviations of ten chunks."""
    import nannyml
    from nannyml.drift.multivariate.domain_classifier.calculator import DEFAULT_LGBM_HYPERPARAMS

    # One thread, because two tools are measured at a time, and without a warning about an unknown parameter each time.
    parameters = {**DEFAULT_LGBM_HYPERPARAMS, "n_jobs": 1, "verbose": -1}
    del parameters["silent"]
    calculator = nannyml.DomainClassifierCalculator(list(reference), chunk_size=rows, hyperparameters=parameters)
    chunks = calculator.fit(reference).result.to_df()["domain_classifier_auroc", "value"]
    limit = chunks.mean() + 3 * chunks.std(ddof=0)

    def test(current: pd.DataFrame) -> list[str]:
        found = calculator.calculate(current).filter(period="analysis").to_df()["domain_classifier_auroc"]
        alarms = {"defaults": found["alert"].any(), "3 deviations": (found["value"] > limit).any()}
        return [name for name, alarm in alarms.items() if alarm]

    return test


def _alibi(options: dict[str, Any], reference: pd.DataFrame, rows: int) -> Test:
    """Let a classifier distinguish the windows: gradient-boosted trees, like Paceline and NannyML."""
    from alibi_detect.cd import ClassifierDrift
    from sklearn.ensemble import HistGradientBoostingClassifier
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    logging.disable(logging.WARNING)
    np.random.seed(0)  # draws the rows to learn from
    before = _encode(reference, reference).to_numpy(np.float32)
    classifier = HistGradientBoostingClassifier(random_state=0)
    detector = ClassifierDrift(before, classifier, backend="sklearn", **options)

    def test(current: pd.DataFrame) -> list[str]:
        with threadpool_limits(1, user_api="openmp"):
            p_value = detector.predict(_encode(reference, current).to_numpy(np.float32))["data"]["p_val"]
        return [f"p < {limit}" for limit in (0.05, SIGNIFICANCE) if p_value < limit]

    return test


_P_VALUES = ("p < 0.05", f"p < {SIGNIFICANCE}")
JOINT_TOOLS = {
    name: Tool(label, environment, prepare, settings=settings)
    for name, label, environment, prepare, settings in (
        ("joint-paceline", "Paceline", "paceline", _paceline, ("defaults",)),
        ("joint-nannyml", "NannyML, classifier", "nannyml", _nannyml_classifier, ("defaults", "3 deviations")),
        ("joint-alibi-folds", "alibi-detect, five folds", "alibi-detect", partial(_alibi, {"n_folds": 5}), _P_VALUES),
        ("joint-alibi", "alibi-detect, one split", "alibi-detect", partial(_alibi, {}), _P_VALUES),
        ("joint-evidently-mmd", "Evidently, MMD", "evidently", _evidently_mmd, ("defaults",)),
        ("joint-evidently", "Evidently, model", "evidently", _evidently_model, ("defaults", "bootstrap=True")),
        ("joint-pca", "NannyML, reconstruction", "nannyml", _nannyml_pca, ("defaults",)),
    )
}
