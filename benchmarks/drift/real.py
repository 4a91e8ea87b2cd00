"""Hits and false alarms of tools that watch a model's error, in windows of real data with all labels.

A model learns from the first rows and predicts the others: a reference, and windows of equal size after it.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats  # type: ignore[import-untyped,unused-ignore]

from benchmarks.drift.environments import read_result, run_adapter
from benchmarks.drift.real_data import ErrorWindows
from benchmarks.drift.tools import river_detectors
from paceline.drift.concept import detect_concept_drift
from paceline.drift.detectors import DETECTORS
from paceline.drift.prediction_errors import WRONG

# A window is degraded if its error exceeds that of the reference by SMALLEST_RISE, significantly after Bonferroni's
# correction for the windows of the data set, and unclear if it is not significant. The test assumes independent rows.
SMALLEST_RISE = 0.02
SIGNIFICANCE = 0.01
RIVER = ("ADWIN", "DDM", "HDDM_A", "Page-Hinkley", "KSWIN")


def measure(data: ErrorWindows) -> dict[str, Any]:
    """Return the numbers of degraded and unclear windows and of the others, and each tool's alarms in them."""
    rises = np.array([window.mean() - data.reference.mean() for window in data.windows])
    p_values = [
        stats.ttest_ind(window, data.reference, equal_var=False, alternative="greater").pvalue
        for window in data.windows
    ]
    significant = np.array(p_values) * len(data.windows) < SIGNIFICANCE
    kinds = np.where(rises < SMALLEST_RISE, "others", np.where(significant, "degraded", "unclear"))
    alarms: dict[str, NDArray[np.bool_]] = {
        f"Paceline, {detector}": np.array([_paceline(data.reference, w, detector) for w in data.windows])
        for detector in DETECTORS
    }
    detectors = river_detectors()
    for name in RIVER:
        alarms[f"river, {name}"] = _river(detectors[name], data)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "errors.npz"
        np.savez(path, reference=data.reference, windows=np.array(data.windows))
        for tool in ("nannyml", "evidently"):
            label, found = read_result(tool, run_adapter(tool, "realised", path, tool))
            alarms[label] = np.array(found, bool)
    return {
        "data": data.name,
        "windows": {kind: int((kinds == kind).sum()) for kind in ("degraded", "unclear", "others")},
        "tools": {
            tool: {kind: int((found & (kinds == kind)).sum()) for kind in ("degraded", "unclear", "others")}
            for tool, found in alarms.items()
        },
    }


def print_real(row: dict[str, Any]) -> None:
    """Print the result of ``measure``: the numbers of windows, and the alarms of each tool in them."""
    print(f"  {row['data']:<22}" + "".join(f"{kind:>10}" for kind in row["windows"]))
    for tool, counts in {"windows": row["windows"], **row["tools"]}.items():
        print(f"    {tool:<42}" + "".join(f"{count:>6}" for count in counts.values()), flush=True)


def _paceline(reference: NDArray[np.float64], window: NDArray[np.float64], detector: Any) -> bool:
    return detect_concept_drift(reference, window, measure=WRONG, detector=detector).verdict == "drift"


def _river(make: Callable[[], Any], data: ErrorWindows) -> NDArray[np.bool_]:
    """Return whether the detector, which has processed the reference, reports a change in each window."""
    detector = make()
    for value in data.reference.tolist():
        detector.update(value)
    return np.array([_reports_change(copy.deepcopy(detector), window) for window in data.windows])


def _reports_change(detector: Any, window: NDArray[np.float64]) -> bool:
    for value in window.tolist():
        detector.update(value)
        if detector.drift_detected:
            return True
    return False
