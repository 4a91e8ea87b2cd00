"""The compared tools and their settings, each as a function that prepares a comparison of windows with a reference.

``benchmarks.drift.adapter`` calls them in the tools' environments, so this module imports Paceline only in functions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

# Prepares a test for the reference and the size of the windows in rows. The test returns the drifted columns, and
# Paceline's also "(joint)" if they have drifted jointly.
Test = Callable[[pd.DataFrame], list[str]]
Prepare = Callable[[pd.DataFrame, int], Test]
SIGNIFICANCE = 0.01  # Paceline's default, for the settings that are not a tool's defaults
GAPS = " is missing"  # suffix of a column that marks the missing values of another column


@dataclass(frozen=True)
class Tool:
    """A tool with one set of settings.

    ``environment`` is its environment. If ``by_column``, the result of a column does not depend on other columns, so
    only the changed column has to be tested. A multivariate test has ``settings`` that share most of the work, and
    returns the names of those that give an alarm instead of columns.
    """

    label: str
    environment: str
    prepare: Prepare
    by_column: bool = False
    settings: tuple[str, ...] = ()


def _categorical(frame: pd.DataFrame) -> list[str]:
    return [str(name) for name in frame if not pd.api.types.is_numeric_dtype(frame[name])]


def _mark_gaps(frame: pd.DataFrame, columns: list[str]) -> pd.DataFrame:
    """Return the frame with an additional column for each of ``columns``: "yes" where its value is missing."""
    return frame.assign(**{name + GAPS: np.where(frame[name].isna(), "yes", "no") for name in columns})


def _without_ending(names: list[str]) -> list[str]:
    return sorted({name.removesuffix(GAPS) for name in names})


def _paceline(reference: pd.DataFrame, rows: int) -> Test:
    from paceline.drift import compare

    return lambda current: compare(reference, current).drifted_parts


def _evidently(threshold: float | None, reference: pd.DataFrame, rows: int) -> Test:
    """Call the tests of Evidently's report directly, because the report takes several times as long.

    Without a threshold, Evidently chooses tests and thresholds. With one, the p-values of the Kolmogorov-Smirnov and
    chi-squared tests count, and columns mark the missing values.
    """
    from evidently.legacy.calculations.stattests import get_stattest
    from evidently.legacy.core import ColumnType

    marked = [] if threshold is None else [str(name) for name in reference if reference[name].isna().any()]
    reference = _mark_gaps(reference, marked)
    labels = _categorical(reference)

    def test(current: pd.DataFrame) -> list[str]:
        current = _mark_gaps(current, marked)
        drifted = []
        for name in map(str, reference):
            kind = ColumnType.Categorical if name in labels else ColumnType.Numerical
            wanted = None if threshold is None else "chisquare" if name in labels else "ks"
            before, after = reference[name].dropna(), current[name].dropna()
            if get_stattest(before, after, kind, wanted)(before, after, kind, threshold).drifted:
                drifted.append(name)
        return _without_ending(drifted)

    return test


def count_in_evidently_report(reference: pd.DataFrame, current: pd.DataFrame) -> int:
    """Return the number of drifted columns in Evidently's report with its default settings."""
    from evidently import DataDefinition, Dataset, Report
    from evidently.presets import DataDriftPreset

    labels = _categorical(reference)
    columns = DataDefinition(
        numerical_columns=[name for name in reference if name not in labels], categorical_columns=labels
    )
    after, before = (Dataset.from_pandas(frame, columns) for frame in (current, reference))
    report = Report([DataDriftPreset()]).run(after, before)
    return int(report.dict()["metrics"][0]["value"]["count"])


def _nannyml(method: str, deviations: float, reference: pd.DataFrame, rows: int) -> Test:
    """Compare distances with thresholds from ten chunks of the reference: the mean plus ``deviations`` deviations.

    A window of ``rows`` rows is one chunk. With 0 rows, reference and window have ten chunks each, NannyML's default.
    """
    import nannyml
    from nannyml.thresholds import StandardDeviationThreshold

    chunks = {"chunk_size": rows} if rows else {"chunk_number": 10}
    columns = [str(name) for name in reference]
    upper = StandardDeviationThreshold(std_lower_multiplier=None, std_upper_multiplier=deviations)
    distances = nannyml.UnivariateDriftCalculator(
        columns,
        continuous_methods=[method],
        thresholds={"kolmogorov_smirnov": upper, "jensen_shannon": upper},
        **chunks,
    ).fit(reference)
    both = StandardDeviationThreshold(deviations, deviations)
    gaps = nannyml.MissingValuesCalculator(columns, threshold=both, **chunks).fit(reference)

    def test(current: pd.DataFrame) -> list[str]:
        found = distances.calculate(current).filter(period="analysis").to_df()
        missing = gaps.calculate(current).filter(period="analysis").to_df()
        alerts = {name: [key for key in found if key[0] == name and key[-1] == "alert"] for name in columns}
        return [name for name in columns if found[alerts[name]].any(axis=None) or missing[name]["alert"].any()]

    return test


def _alibi(correction: str, p_value: float, reference: pd.DataFrame, rows: int) -> Test:
    """Encode labels as numbers, replace missing values by the median and mark them in a column."""
    from alibi_detect.cd import TabularDrift

    marked = [str(name) for name in reference if reference[name].isna().any()]
    medians = reference.median(numeric_only=True)
    reference = _mark_gaps(reference, marked)
    labels = _categorical(reference)
    codes = {name: {label: i for i, label in enumerate(reference[name].unique())} for name in labels}
    names = [str(name) for name in reference]

    def encode(frame: pd.DataFrame) -> Any:
        numbers = np.empty((len(frame), len(names)), np.float32)
        for i, name in enumerate(names):
            column = frame[name]
            numbers[:, i] = column.map(codes[name]).fillna(-1) if name in codes else column.fillna(medians[name])
        return numbers

    detector = TabularDrift(
        encode(reference),
        p_val=p_value,
        correction=correction,
        categories_per_feature={names.index(name): None for name in labels} or None,
    )

    def test(current: pd.DataFrame) -> list[str]:
        result = detector.predict(encode(_mark_gaps(current, marked)))["data"]
        if not result["is_drift"]:
            return []
        # The threshold of the false discovery rate is the greatest p-value that is significant.
        significant = result["p_val"] <= result["threshold"]
        return _without_ending([name for name, is_drift in zip(names, significant, strict=True) if is_drift])

    return test


def _bind(function: Callable[..., Test], *settings: object) -> Prepare:
    return lambda reference, rows: function(*settings, reference, rows)


TOOLS = {
    "paceline": Tool("Paceline", "paceline", _paceline),
    "evidently": Tool("Evidently, defaults", "evidently", _bind(_evidently, None), by_column=True),
    # Ten features and a column that marks missing values.
    "evidently-corrected": Tool(
        "Evidently, KS and chi-squared at 0.01 / 11", "evidently", _bind(_evidently, SIGNIFICANCE / 11), by_column=True
    ),
    "nannyml": Tool(
        "NannyML, defaults (Jensen-Shannon, 3 deviations)",
        "nannyml",
        _bind(_nannyml, "jensen_shannon", 3),
        by_column=True,
    ),
    "nannyml-ks": Tool(
        "NannyML, KS for numbers, 5 deviations", "nannyml", _bind(_nannyml, "kolmogorov_smirnov", 5), by_column=True
    ),
    "alibi": Tool(
        "alibi-detect, TabularDrift, defaults (Bonferroni, 0.05)", "alibi-detect", _bind(_alibi, "bonferroni", 0.05)
    ),
    "alibi-fdr": Tool("alibi-detect, TabularDrift, FDR at 0.01", "alibi-detect", _bind(_alibi, "fdr", SIGNIFICANCE)),
}


def river_detectors() -> dict[str, Callable[[], Any]]:
    """Return river's detectors for errors of 0 and 1, with their default settings unless the name says otherwise."""
    from river import drift

    kinds: Any = drift
    return {
        "ADWIN": kinds.ADWIN,
        "ADWIN, clock=1": lambda: kinds.ADWIN(clock=1),
        "DDM": kinds.binary.DDM,
        "EDDM": kinds.binary.EDDM,
        "HDDM_A": kinds.binary.HDDMA,
        "KSWIN": lambda: kinds.KSWIN(seed=0),
        "HDDM_W": kinds.binary.HDDMW,
        "Page-Hinkley": kinds.PageHinkley,
        'Page-Hinkley, threshold=25, mode="up"': lambda: kinds.PageHinkley(threshold=25.0, mode="up"),
    }
