"""Estimates a model's error on current rows whose labels are not known yet, and tests whether it has risen.

Called by ``paceline.drift.compare``; ``paceline.drift._learners`` has the two methods.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from paceline.contract import EstimatedPeriod, PerformanceEstimate
from paceline.drift._columns import Column, shorten, to_numbers
from paceline.drift._cross_fit import Times, cross_fit
from paceline.drift._joint import encode_column
from paceline.drift._learners import FOLDS, Calibrator, LossModel
from paceline.drift._settings import DriftSettings
from paceline.drift._support import Bounds, Support, find_unsupported_rows
from paceline.drift.prediction_errors import (
    ABSOLUTE,
    MEASURES,
    WRONG,
    ErrorKind,
    PredictionErrors,
    are_numbers,
    check_values,
    read_numbers,
)
from paceline.errors import InvalidInputError

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

# Rows of the reference from which the trees learn. More rows would take longer and hardly change the mean error.
MAX_LEARNED_ROWS = 20_000
MAX_PERIODS = 12


def estimate_performance(
    columns: Sequence[Column],
    reference: pd.DataFrame,
    current: pd.DataFrame,
    prediction: str,
    actual: str,
    errors: PredictionErrors,
    settings: DriftSettings,
    time: str | None = None,
) -> PerformanceEstimate | None:
    """Estimate the error of the current predictions without labels; return None if there is nothing to estimate.

    A model learns the errors of the reference: the probability of each label from the score (CBPE), or the error
    itself from the features and the prediction (DLE). The estimate is the realised error of the reference, plus the
    difference between the model's predictions for the current rows and for the reference. The predictions for the
    reference are cross-fitted, so that the model's fit to its own rows does not bias the difference. A jackknife over
    the folds gives the part of the variance that comes from the reference.

    The estimate says nothing about rows that are unlike any rows of the reference. If labels of other rows contradict
    it, it is unreliable, too. The verdict is withheld if the estimate is no alarm, but the upper bound of the error is
    (see ``Bounds``), or if it is an alarm that the labels contradict.

    Parameters
    ----------
    columns:
        The features.
    reference, current:
        The windows. The rows are in time order if ``time`` is given.
    prediction, actual, time:
        Columns of the predictions, of the labels, and of the time that delimits periods.
    errors:
        Result of ``compute_errors`` for these windows; it decides the measure.
    settings:
        ``significance``, ``estimate_threshold``, ``minimum_samples`` and ``threshold``.

    Raises
    ------
    InvalidInputError
        For infinite predictions, predictions that are not numbers although those of the reference are, and
        probabilities outside 0 to 1.

    Notes
    -----
    J. Białek et al., "We don't need no labels: estimating post-deployment model performance under covariate shift
    without ground truth", arXiv 2401.08348, 2024, and the documentation of NannyML (CBPE and DLE). B. Zadrozny and
    C. Elkan, "Transforming classifier scores into accurate multiclass probability estimates", KDD 2002 (isotonic
    calibration). J. Shao and D. Tu, "The Jackknife and Bootstrap", Springer 1995 (jackknife with groups).

    Examples
    --------
    >>> import numpy as np, pandas as pd
    >>> from paceline.drift.prediction_errors import compute_errors
    >>> rng = np.random.default_rng(0)
    >>> def window(level):
    ...     score = 1 / (1 + np.exp(-rng.normal(level, 1, 2000)))
    ...     return pd.DataFrame({"score": score, "late": (rng.random(2000) < score) * 1.0})
    >>> reference, current = window(2), window(0)
    >>> realised = ((current["score"] - current["late"]) ** 2).mean()
    >>> current["late"] = np.nan
    >>> errors = compute_errors(reference, current, "score", "late")
    >>> result = estimate_performance([], reference, current, "score", "late", errors, DriftSettings())
    >>> result.verdict, round(result.reference_error, 3), round(result.error, 3), round(float(realised), 3)
    ('drift', 0.109, 0.194, 0.208)
    """
    import numpy as np
    import pandas as pd
    from scipy.stats import t

    known = reference[:0]
    if {prediction, actual} <= set(reference.columns):
        known = reference[reference[prediction].notna() & reference[actual].notna()]
    current = current[current[prediction].notna()]
    if not len(current):
        return None
    has_label = current[actual].notna().to_numpy()
    unlabelled, labelled = np.flatnonzero(~has_label), np.flatnonzero(has_label)
    if not len(unlabelled) and len(known) < settings.minimum_samples:
        return None
    error = next(kind for kind, measure in MEASURES.items() if measure == errors.measure)
    is_calibrated = errors.classes is not None
    if error == "wrong" and len(known):
        names = [prediction, actual]
        is_calibrated = _are_scores(pd.concat([known[names], current[has_label][names]]), prediction, actual)
    facts: dict[str, Any] = {
        "method": "CBPE" if is_calibrated else "DLE",
        "measure": errors.measure,
        "reference_rows": len(known),
        "rows": len(unlabelled),
        "labelled_rows": len(labelled),
    }
    too_few = _too_few(known, actual, settings.minimum_samples, is_calibrated=is_calibrated)
    if too_few:
        return PerformanceEstimate(verdict="not enough data", reason=too_few, **facts)

    inputs = _choose_inputs(columns, known, current, prediction)
    learned = np.arange(len(known))
    if not is_calibrated:  # the trees learn from a sample of the rows, but the error of all rows is known
        learned = np.sort(np.random.default_rng(0).permutation(len(known))[:MAX_LEARNED_ROWS])
    times = None
    if time is not None and time in known.columns:
        before, after = (pd.factorize(frame[time])[0] for frame in (known, current))  # the rows are in time order
        times = Times(len(np.unique(before)), before[learned], after)
    target = np.full(len(current), np.nan)  # NaN where the label of a current row is unknown
    if is_calibrated:
        target[labelled] = to_numbers(current[actual], "current")
        estimate = cross_fit(
            Calibrator(error, settings.threshold, *_read_scores(known, current, prediction, actual, error)),
            times=times,
        )
    else:
        target[labelled] = errors.current
        losses = _learn_losses(inputs, known.iloc[learned], current, errors.measure, errors.reference[learned])
        estimate = cross_fit(losses, float(errors.reference.mean()), times)
    facts["reference_error"] = estimate.reference_error
    no_skill = errors.no_skill
    if errors.measure == ABSOLUTE:
        no_skill = float(np.quantile(errors.reference, 0.99))  # as for concept drift
    least = settings.estimate_threshold * no_skill
    support = Support(np.zeros(len(current), dtype=bool))
    if len(unlabelled) or time is not None:  # labelled rows need no bounds, except in periods
        support = find_unsupported_rows(inputs, known, current, settings.minimum_samples, settings.significance)
    bounds = Bounds(estimate, support.unsupported)
    warnings = []
    if len(labelled) >= settings.minimum_samples:
        facts["labelled_error"], facts["labelled_standard_error"] = estimate.error(labelled)
        facts["realised_error"] = estimate.realised(target, labelled)
        facts["difference"] = facts["realised_error"] - facts["labelled_error"]
        limit = facts["labelled_standard_error"] * float(t.isf(settings.significance / 2, FOLDS - 1))
        if abs(facts["difference"]) > max(limit, least):
            bounds = replace(bounds, bias=facts["difference"])
            warnings.append(
                f"In the {len(labelled):,} rows with labels, the {errors.measure} is {facts['realised_error']:.3g}, "
                f"but estimated at {facts['labelled_error']:.3g}."
            )
    if len(unlabelled):
        facts["unsupported"] = bounds.share(unlabelled)
        if replace(bounds, bias=0.0).distance(unlabelled) >= least > 0:
            warnings.append(
                f"{facts['unsupported']:.1%} of the rows without labels are unlike any rows of the reference "
                f"(most in {', '.join(support.columns)}), so their error is unknown.",
            )
    facts["warning"] = " ".join(warnings)
    if time is not None:
        facts["periods"] = _split_periods(bounds, target, current[time], settings.minimum_samples)
    if len(unlabelled) < settings.minimum_samples:
        reason = f"{len(unlabelled)} current rows have no label yet; the minimum is {settings.minimum_samples}."
        if not len(unlabelled):
            reason = "All rows with a prediction have a label."
        return PerformanceEstimate(verdict="not enough data" if len(unlabelled) else "skipped", reason=reason, **facts)
    facts["error"], facts["standard_error"] = bounds.error(unlabelled)
    facts["p_value"] = estimate.rise_p_value(unlabelled)
    # Unsupported rows count as estimated for an alarm, and at their worst for its absence.
    at_least, at_most = (
        estimate.rise_p_value(unlabelled, deviation) <= settings.significance
        and facts["error"] + deviation - facts["reference_error"] >= least
        for deviation in (min(bounds.bias, 0.0), bounds.range(unlabelled)[1])
    )
    subject = f"Without labels, the {errors.measure} of {len(unlabelled):,} rows"
    if at_most and not at_least:
        reason = f"{subject} cannot be judged. {facts['warning']}"
        return PerformanceEstimate(verdict="withheld", reason=reason, **facts)
    reason = (
        f"{subject} is estimated at {facts['error']:.3g} "
        f"({'up from' if at_least else 'reference'} {facts['reference_error']:.3g}, {facts['method']})."
    )
    return PerformanceEstimate(verdict="drift" if at_least else "no drift", reason=reason, **facts)


def _are_scores(frame: pd.DataFrame, prediction: str, actual: str) -> bool:
    """Return whether the labels are 0 and 1, and the predictions are numbers other than 0 and 1."""
    import numpy as np

    if not (are_numbers(frame[prediction]) and are_numbers(frame[actual])):
        return False
    predicted, truth = (to_numbers(frame[name], "reference") for name in (prediction, actual))
    return bool(np.isin(truth, (0, 1)).all()) and not np.isin(predicted, (0, 1)).all()


def _too_few(known: pd.DataFrame, actual: str, minimum: int, *, is_calibrated: bool) -> str:
    """Return why the reference has too few rows to learn from, or ""."""
    if len(known) < minimum:
        return f"{len(known)} reference rows have a prediction and a label; the minimum is {minimum}."
    counts = [int((known[actual] == label).sum()) for label in (0, 1)]
    if is_calibrated and min(counts) < FOLDS:
        return f"The reference has {counts[1]} rows with the label 1 and {counts[0]} with 0; the minimum is {FOLDS}."
    return ""


def _read_scores(
    known: pd.DataFrame, current: pd.DataFrame, prediction: str, actual: str, error: ErrorKind
) -> tuple[Floats, Floats]:
    """Return the scores of both windows and the labels of the reference."""
    import numpy as np

    later = _read_predictions(current, prediction)
    check_values(error, prediction, actual, later, binary=True)
    scores = np.concatenate([to_numbers(known[prediction], "reference"), later])
    return scores, to_numbers(known[actual], "reference")


def _read_predictions(current: pd.DataFrame, prediction: str) -> Floats:
    if not are_numbers(current[prediction]):
        values = current[prediction].tolist()
        odd = next((value for value in values if isinstance(value, str)), values[0])
        raise InvalidInputError(prediction, odd, "numbers in the current window, as in the reference")
    return read_numbers(current[prediction], "current")


def _choose_inputs(
    columns: Sequence[Column], known: pd.DataFrame, current: pd.DataFrame, prediction: str
) -> list[Column]:
    """Return the prediction and the compared features; embeddings are left out."""
    is_number = all(are_numbers(frame[prediction]) for frame in (known, current))
    features = [column for column in columns if not column.skipped and column.kind in ("numeric", "categorical")]
    return [Column(prediction, "numeric" if is_number else "categorical"), *features]


def _learn_losses(
    inputs: Sequence[Column], learned: pd.DataFrame, current: pd.DataFrame, measure: str, errors: Floats
) -> LossModel:
    import numpy as np

    is_wrong = measure == WRONG
    if measure == ABSOLUTE:
        _read_predictions(current, inputs[0].name)  # raises an error if one is invalid
    encoded = np.concatenate([encode_column(column, learned, current) for column in inputs], axis=1)
    return LossModel(encoded, errors, is_wrong=is_wrong)


def _split_periods(bounds: Bounds, target: Floats, times: pd.Series[Any], minimum: int) -> tuple[EstimatedPeriod, ...]:
    import numpy as np

    number = min(MAX_PERIODS, len(times) // minimum)
    periods = []
    for rows in np.array_split(np.arange(len(times)), number) if number else []:
        error, standard_error = bounds.error(rows)
        labelled = rows[~np.isnan(target[rows])]
        periods.append(
            EstimatedPeriod(
                start=shorten(str(times.iloc[rows[0]])),
                end=shorten(str(times.iloc[rows[-1]])),
                rows=len(rows),
                error=error,
                standard_error=standard_error,
                labelled_rows=len(labelled),
                realised_error=bounds.estimate.realised(target, labelled) if len(labelled) >= minimum else None,
                unsupported=bounds.share(rows),
            )
        )
    return tuple(periods)
