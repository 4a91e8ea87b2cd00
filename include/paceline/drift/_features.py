"""Tests each feature in two windows; the statistics themselves are in ``paceline.drift._statistics``.

Called by ``paceline.drift._feature_comparison``; ``paceline.drift._judgement`` decides the verdicts.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from paceline.contract import FeatureDrift, Histogram
from paceline.drift._categories import align, compare_categories, merge_rare
from paceline.drift._columns import Column, count_labels, shorten_name, to_label, to_numbers
from paceline.drift._dependence import Units
from paceline.drift._design import FEWEST_INDEPENDENT_ROWS, INDEPENDENT, indicator_design, numeric_design
from paceline.drift._embeddings import compare_vectors
from paceline.drift._joint import FEWEST
from paceline.drift._settings import DriftSettings
from paceline.drift._statistics import (
    TestResult,
    chi_squared,
    count_values,
    kolmogorov_smirnov,
    missing_test,
    stability_index,
    stability_index_of_values,
)
from paceline.drift._text import compare_texts
from paceline.drift._vectors import drop_invalid_vectors
from paceline.drift.units import FEWEST_UNITS, has_enough_units

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

BARS = 20
LABELS = 10
OTHER = "(other)"
# Up to this number of distinct values, the chi-squared test detects smaller changes of numbers than Kolmogorov-Smirnov.
FEW_VALUES = 10
CONSTANT = "constant in both windows"
DEPENDENT = f"the values in a window count as fewer than {FEWEST_INDEPENDENT_ROWS} independent rows"
FEW_UNITS = {kind: f"a window has values of fewer than {FEWEST_UNITS} {kind}" for kind in ("times", "groups")}
UNTESTED = (DEPENDENT, *FEW_UNITS.values())  # reasons of features that may have drifted


@dataclass(frozen=True)
class TestedFeature:
    """A feature with its test results, before the verdict. A result is ``None`` if the test is impossible.

    ``detail`` states what distinguishes the windows of a text.
    """

    feature: FeatureDrift
    values: TestResult | None = None
    missing: TestResult | None = None
    too_few: bool = False
    detail: str = ""


def run_tests(
    column: Column,
    reference: pd.DataFrame,
    current: pd.DataFrame,
    settings: DriftSettings,
    units: tuple[Units, Units] | None = None,
) -> TestedFeature:
    """Test whether the values of one column, and their share of missing values, differ between the windows.

    ``units`` are those of the rows of both windows, if rows depend on each other.
    """
    before, after = reference[column.name], current.get(column.name)
    if after is None:
        return TestedFeature(FeatureDrift(column.name, column.kind, "skipped", column.skipped, missing_current=1.0))
    if column.dimensions:
        before, after = (drop_invalid_vectors(series, column.dimensions) for series in (before, after))
    feature = FeatureDrift(
        column.name,
        column.kind,
        "skipped",
        column.skipped,
        missing_reference=float(before.isna().mean()),
        missing_current=float(after.isna().mean()),
        dimensions=column.dimensions,
    )
    if column.skipped:
        return TestedFeature(feature)
    missing = _test_missing(before, after, units)
    known = [series.notna().to_numpy() for series in (before, after)]
    if units is not None:
        units = units[0].take(known[0]), units[1].take(known[1])
    detail = ""
    if column.kind == "numeric":
        numbers = to_numbers(before, "reference"), to_numbers(after, "current")
        feature, values = _test_numeric(feature, *numbers, settings, units)
    elif column.kind == "embedding":
        feature, values = _test_embedding(feature, before.dropna(), after.dropna(), settings, units)
    elif column.kind == "text":
        feature, values, detail = _test_text(feature, before.dropna(), after.dropna(), settings, units)
    else:
        feature, values = _test_categorical(feature, before, after, settings, units)
    least = settings.minimum_samples * (FEWEST if column.kind in ("embedding", "text") else 1)
    number = [int(rows.sum()) for rows in known]
    too_few = feature.reason == DEPENDENT or bool(_too_few_reason(number[0], number[1], least, units))
    if feature.reason == CONSTANT and (missing is None or not missing.effect):
        return TestedFeature(feature)
    return TestedFeature(feature, values, missing, too_few, detail)


def _test_missing(
    before: pd.Series[Any], after: pd.Series[Any], units: tuple[Units, Units] | None
) -> TestResult | None:
    """Test the shares of missing values; return ``None`` if the windows count as too few independent rows."""
    missing = [series.isna().to_numpy() for series in (before, after)]
    lost = [int(rows.sum()) for rows in missing]
    if units is None or not any(lost):
        return missing_test(lost[0], len(before), lost[1], len(after))
    design = indicator_design([rows[:, None] for rows in missing], units)
    independent = design.independent_rows(len(before), len(after))
    if min(independent) < FEWEST_INDEPENDENT_ROWS:
        return None
    shares = [float(rows.mean()) for rows in missing]
    totals = [round(rows) for rows in independent]  # Fisher's test needs whole numbers
    result = missing_test(round(shares[0] * totals[0]), totals[0], round(shares[1] * totals[1]), totals[1])
    effect = abs(shares[1] - shares[0])
    return TestResult(effect, design.correct(result.p_value), effect)


def _test_numeric(
    feature: FeatureDrift,
    before: NDArray[np.float64],
    after: NDArray[np.float64],
    settings: DriftSettings,
    units: tuple[Units, Units] | None,
) -> tuple[FeatureDrift, TestResult | None]:

    if len(before) and len(after):
        feature = replace(
            feature,
            level_reference=float(before.mean()),
            level_current=float(after.mean()),
            histogram=_number_histogram(before, after),
        )
        if before.min() == before.max() == after.min() == after.max():
            return replace(feature, reason=CONSTANT), None
    if reason := _too_few_reason(len(before), len(after), settings.minimum_samples, units):
        return replace(feature, reason=reason), None
    r, c = count_values(before, after)
    design = numeric_design(before, after, units)
    if min(design.independent_rows(len(before), len(after))) < FEWEST_INDEPENDENT_ROWS:
        return replace(feature, reason=DEPENDENT), None
    if len(r) <= FEW_VALUES:
        r_cells, c_cells, _ = merge_rare(r / design.reference, c / design.current)
        if len(r_cells) > 1:
            result = design.correct_result(chi_squared(r_cells.tolist(), c_cells.tolist()))
            psi = stability_index((r_cells * design.reference).tolist(), (c_cells * design.current).tolist())
            return _with_test_result(feature, "chi-squared", result, psi), result
    result = design.correct_result(kolmogorov_smirnov(r / design.reference, c / design.current))
    psi = stability_index_of_values(before, after)
    return _with_test_result(feature, "Kolmogorov-Smirnov", result, psi), result


def _test_categorical(
    feature: FeatureDrift,
    before: pd.Series[Any],
    after: pd.Series[Any],
    settings: DriftSettings,
    units: tuple[Units, Units] | None,
) -> tuple[FeatureDrift, TestResult | None]:
    import numpy as np

    r, c = count_labels(before), count_labels(after)
    new = sorted((label for label in c if label not in r), key=lambda label: -c[label]) if r else []
    feature = replace(feature, new_categories=tuple(map(shorten_name, new[:LABELS])), histogram=_label_histogram(r, c))
    if len(r) == 1 and r.keys() == c.keys():
        return replace(feature, reason=CONSTANT), None
    if reason := _too_few_reason(sum(r.values()), sum(c.values()), settings.minimum_samples, units):
        return replace(feature, reason=reason), None
    design, single = INDEPENDENT, None
    if units is not None:
        labels = [series.dropna().map(to_label).to_numpy(dtype=object) for series in (before, after)]
        frequent = sorted(r.keys() | c.keys(), key=lambda label: (-r.get(label, 0) - c.get(label, 0), label))[:LABELS]
        design = indicator_design([rows[:, None] == np.array(frequent, dtype=object) for rows in labels], units)
        if min(design.independent_rows(*map(len, labels))) < FEWEST_INDEPENDENT_ROWS:
            return replace(feature, reason=DEPENDENT), None
        rows_r, rows_c = (Counter(rows[one.first_rows()].tolist()) for rows, one in zip(labels, units, strict=True))
        single = align({label: rows_r[label] for label in r.keys() | c.keys()}, rows_c)
    found = compare_categories(*align(r, c), least_rare=settings.effect_threshold, design=design, single=single)
    if found is None:
        return replace(feature, reason="every category is too rare to compare (is the column an identifier?)"), None
    return _with_test_result(feature, found.test, found.result, found.psi), found.result


def _test_embedding(
    feature: FeatureDrift,
    before: pd.Series[Any],
    after: pd.Series[Any],
    settings: DriftSettings,
    units: tuple[Units, Units] | None,
) -> tuple[FeatureDrift, TestResult | None]:
    if reason := _too_few_reason(len(before), len(after), FEWEST * settings.minimum_samples, units):
        return replace(feature, reason=reason), None
    result = compare_vectors(before, after, settings, units)
    if result is None:
        return replace(feature, reason=f"vectors of {feature.dimensions:,} numbers are too long to compare"), None
    return _with_test_result(feature, "domain classifier", result, None), result


def _test_text(
    feature: FeatureDrift,
    before: pd.Series[Any],
    after: pd.Series[Any],
    settings: DriftSettings,
    units: tuple[Units, Units] | None,
) -> tuple[FeatureDrift, TestResult | None, str]:
    least = settings.minimum_samples
    if units is not None and not units[0].in_time_order:  # one text of each group is independent of the others
        before, after = before.iloc[units[0].first_rows()], after.iloc[units[1].first_rows()]
    if reason := _too_few_reason(len(before), len(after), least, units):
        return replace(feature, reason=reason), None, ""
    found = compare_texts(before, after, settings)
    if found is None:
        return replace(feature, reason=_describe_rows(len(before), len(after), FEWEST * least)), None, ""
    test, result, detail = found
    return _with_test_result(feature, test, result, None), result, detail


def _with_test_result(feature: FeatureDrift, test: str, result: TestResult, psi: float | None) -> FeatureDrift:
    return replace(
        feature,
        test=test,
        statistic=result.statistic,
        p_value=result.p_value,
        effect=result.effect,
        psi=psi,
    )


def _too_few_reason(reference: int, current: int, least: int, units: tuple[Units, Units] | None) -> str:
    """Return which of the rows with a value, or of their units, are too few for a test, or ""."""
    if min(reference, current) < least:
        return _describe_rows(reference, current, least)
    if units is None or has_enough_units(units):
        return ""
    return FEW_UNITS["times" if units[0].in_time_order else "groups"]


def _describe_rows(reference: int, current: int, least: int) -> str:
    return f"the windows have {reference} and {current} values, but each needs at least {least}"


def _number_histogram(before: NDArray[np.float64], after: NDArray[np.float64]) -> Histogram:
    import numpy as np

    pooled = np.concatenate([before, after])
    low, high = np.quantile(pooled, [0.005, 0.995])
    if low == high:
        low, high = float(pooled.min()), float(pooled.max())
    if low == high:
        low, high = low - 0.5, high + 0.5
    edges = np.linspace(low, high, BARS + 1)

    def shares(values: NDArray[np.float64]) -> tuple[float, ...]:
        # Count outliers in the outermost bins; a wider range would flatten the histogram.
        counts, _ = np.histogram(np.clip(values, low, high), bins=edges)
        return tuple(np.round(counts / len(values), 5).tolist())

    return Histogram(shares(before), shares(after), edges=tuple(float(f"{edge:.6g}") for edge in edges))


def _label_histogram(before: dict[str, int], after: dict[str, int]) -> Histogram:
    n_before, n_after = max(1, sum(before.values())), max(1, sum(after.values()))
    shares = {
        label: (before.get(label, 0) / n_before, after.get(label, 0) / n_after)
        for label in sorted(set(before) | set(after))
    }
    top = sorted(shares, key=lambda label: (-sum(shares[label]), label))[:LABELS]
    rows = [shares[label] for label in top]
    names = [shorten_name(label) for label in top]
    if len(top) < len(shares):
        names.append(OTHER)
        rows.append((max(0.0, 1 - sum(r for r, _ in rows)), max(0.0, 1 - sum(c for _, c in rows))))
    return Histogram(tuple(round(r, 5) for r, _ in rows), tuple(round(c, 5) for _, c in rows), labels=tuple(names))
