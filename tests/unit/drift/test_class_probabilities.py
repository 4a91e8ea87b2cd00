"""Predictions with a probability for each class have the errors of probabilities, and invalid ones are refused."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import log_loss

from paceline.drift import DriftReport, DriftSettings, compare
from paceline.drift.class_probabilities import compute_class_errors, read_prediction, with_predicted_class
from paceline.drift.prediction_errors import WRONG, ErrorKind, PredictionErrors, compute_errors
from paceline.errors import InvalidInputError

NAMES = np.array(["bird", "cat", "dog"])
COLUMNS = {name: f"p_{name}" for name in NAMES}


def draw(seed: int, skill: float = 3.0, rows: int = 600) -> pd.DataFrame:
    """Return probabilities of three classes, and labels that follow them if ``skill`` is positive."""
    rng = np.random.default_rng(seed)
    label = rng.integers(0, 3, rows)
    scores = np.exp(rng.normal(size=(rows, 3)) + skill * np.eye(3)[label])
    probabilities = scores / scores.sum(axis=1, keepdims=True)
    columns = dict(zip(COLUMNS.values(), probabilities.T, strict=True))
    return pd.DataFrame({"temp": rng.normal(size=rows), **columns, "late": NAMES[label]})


def read_errors(reference: pd.DataFrame, current: pd.DataFrame, columns: Any, **options: Any) -> PredictionErrors:
    return compute_class_errors(*with_predicted_class(reference, current, columns), columns, "late", **options)


def compare_classes(reference: pd.DataFrame, current: pd.DataFrame, **options: Any) -> DriftReport:
    return compare(reference, current, prediction=COLUMNS, actual="late", **options)


@pytest.mark.parametrize("error", ["auto", "brier", "log_loss", "wrong"])
def test_poorer_probabilities_are_drift(error: ErrorKind) -> None:
    report = compare_classes(draw(0), draw(1, skill=0.5), settings=DriftSettings(error=error))
    assert "(concept)" in report.drifted_parts
    assert not {*COLUMNS.values()} & {feature.name for feature in report.features}
    assert report.concept is not None
    assert report.concept.confusion_current is not None
    assert report.concept.confusion_current.classes == tuple(NAMES)
    assert DriftReport.from_dict(report.to_dict()) == report


def test_errors_equal_their_formulas() -> None:
    frame = draw(0)
    probabilities, labels = frame[[*COLUMNS.values()]].to_numpy(), frame["late"].to_numpy()
    one_hot = (labels[:, None] == NAMES).astype(float)
    brier = ((probabilities - one_hot) ** 2).sum(axis=1) / 2
    assert read_errors(frame, frame, COLUMNS).current == pytest.approx(brier)
    losses = read_errors(frame, frame, COLUMNS, error="log_loss")
    assert losses.current.mean() == pytest.approx(log_loss(labels, probabilities, labels=NAMES))
    wrong = read_errors(frame, frame, COLUMNS, error="wrong")
    assert wrong.measure == WRONG
    assert wrong.current.tolist() == (NAMES[probabilities.argmax(axis=1)] != labels).astype(float).tolist()


@pytest.mark.parametrize("error", ["brier", "log_loss", "wrong"])
def test_two_classes_have_the_errors_of_one_probability(error: ErrorKind) -> None:
    rng = np.random.default_rng(0)
    p_yes = rng.random(500)
    frame = pd.DataFrame({"p_yes": p_yes, "p_no": 1 - p_yes, "late": (rng.random(500) < 0.3 * p_yes).astype(int)})
    one = compute_errors(frame, frame, "p_yes", "late", error=error)
    both = read_errors(frame, frame, {"0": "p_no", "1": "p_yes"}, error=error)
    assert both.current == pytest.approx(one.current)
    assert (both.measure, both.confusions) == (one.measure, one.confusions)
    assert (both.no_skill, both.ceiling) == (pytest.approx(one.no_skill), pytest.approx(one.ceiling))


def test_ddm_processes_the_most_probable_class() -> None:
    assert read_errors(draw(0), draw(1), COLUMNS, detector="ddm").measure == WRONG


def test_ids_of_classes_match_labels_of_any_type() -> None:
    frame = draw(0)
    columns = read_prediction(dict(enumerate(COLUMNS.values())))
    expected = read_errors(frame, frame, COLUMNS).current
    for form in (int, float, str, lambda number: Decimal(f"{number}.00")):
        window = frame.assign(late=[form(int(np.flatnonzero(name == NAMES)[0])) for name in frame["late"]])
        assert read_errors(window, window, columns).current == pytest.approx(expected)


def test_label_without_a_column_has_the_probability_0() -> None:
    frame = draw(0)
    frame.loc[:49, "late"] = "fish"
    errors = read_errors(draw(1), frame, COLUMNS, error="log_loss")
    assert errors.current[:50] == pytest.approx(-np.log(1e-6))
    assert read_errors(draw(1), frame, COLUMNS, error="wrong").current[:50].tolist() == [1.0] * 50


def test_rows_without_probabilities_or_labels_have_no_error() -> None:
    frame = draw(0)
    frame.loc[:9, [*COLUMNS.values()]] = np.nan
    frame.loc[10:29, "late"] = None
    errors = read_errors(draw(1), frame, COLUMNS)
    assert errors.rows.tolist() == list(range(30, 600))


def test_reference_may_lack_the_columns() -> None:
    errors = read_errors(draw(0).drop(columns=[*COLUMNS.values()]), draw(1), COLUMNS)
    assert (len(errors.reference), len(errors.current)) == (0, 600)


def test_reference_with_some_of_the_columns_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="prediction: got 'p_cat', expected a column of the reference window"):
        read_errors(draw(0).drop(columns="p_cat"), draw(1), COLUMNS)


def test_class_that_is_never_a_label_is_refused_if_a_label_has_no_column() -> None:
    frame = draw(0)
    last = [*COLUMNS][-1]
    misspelt = {("ZZ" if name == last else name): column for name, column in COLUMNS.items()}
    with pytest.raises(InvalidInputError, match=f"prediction: got 'ZZ', expected classes that are labels .*'{last}'"):
        read_errors(frame, draw(1), misspelt)


def test_text_of_probabilities_is_read_as_numbers() -> None:
    frame = draw(0)
    text = frame.assign(**{column: frame[column].astype(str) for column in COLUMNS.values()})
    assert read_errors(text, frame, COLUMNS).reference == pytest.approx(read_errors(frame, frame, COLUMNS).reference)


def test_error_without_labels_is_estimated_from_the_probabilities() -> None:
    def draw_calibrated(seed: int, spread: float) -> pd.DataFrame:
        rng = np.random.default_rng(seed)
        scores = np.exp(rng.normal(0, spread, size=(2000, 3)))
        probabilities = scores / scores.sum(axis=1, keepdims=True)
        label = (rng.random((2000, 1)) > probabilities.cumsum(axis=1)).sum(axis=1).clip(max=2)
        columns = dict(zip(COLUMNS.values(), probabilities.T, strict=True))
        return pd.DataFrame({"temp": rng.normal(size=2000), **columns, "late": NAMES[label]})

    reference, current = draw_calibrated(0, 3.0), draw_calibrated(1, 1.0)
    report = compare_classes(reference, current.drop(columns="late"))
    realised = read_errors(reference, current, COLUMNS).current.mean()
    assert report.estimate is not None
    assert (report.estimate.method, report.estimate.verdict) == ("DLE", "drift")
    assert report.estimate.error == pytest.approx(realised, rel=0.1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"p_cat": 0.9}, r"prediction: got 1\.\d+, expected columns whose sum is 1 in each row, unlike row 7 of the "),
        ({"p_cat": 1.2}, r"p_cat: got 1\.2, expected a probability between 0 and 1 in row 7 of the current window"),
        ({"p_cat": -0.1}, r"p_cat: got -0\.1, expected a probability between 0 and 1 in row 7 of the current window"),
        ({"p_cat": np.nan}, r"p_cat: got None, expected a probability in row 7 of the current window, as in the col"),
        ({"p_cat": "high"}, r"p_cat: got 'high', expected probabilities between 0 and 1 in the current window"),
    ],
)
def test_invalid_probabilities_are_refused_with_their_row(change: dict[str, Any], message: str) -> None:
    reference, current = draw(0), draw(1).astype({"p_cat": object})
    current.loc[7, [*COLUMNS.values()]] = [0.2, 0.2, 0.6]
    current.loc[7, [*change]] = [*change.values()]
    with pytest.raises(InvalidInputError, match="^" + message):
        compare_classes(reference, current)


def test_labels_that_are_not_among_the_classes_are_refused() -> None:
    frames = [draw(seed).assign(late=lambda frame: frame["late"].str.upper()) for seed in (0, 1)]
    with pytest.raises(
        InvalidInputError, match=r"^prediction: got .*'late' has .*'CAT'.*never match \(equal except for c"
    ):
        compare_classes(*frames)


@pytest.mark.parametrize("error", ["absolute", "auc"])
def test_errors_of_one_number_are_refused(error: ErrorKind) -> None:
    with pytest.raises(InvalidInputError, match=rf"^error: got '{error}', expected 'brier', 'log_loss', 'wrong' or"):
        compare_classes(draw(0), draw(1), settings=DriftSettings(error=error))


@pytest.mark.parametrize(
    "prediction", [["p_cat", "p_dog"], {}, {"cat": "p_cat"}, {"cat": "p", "dog": "p"}, {1: "a", "1": "b"}]
)
def test_invalid_names_of_probabilities_are_refused(prediction: Any) -> None:
    with pytest.raises(
        InvalidInputError, match=r"^prediction: got .*, expected the name of a column, or the column of"
    ):
        compare(draw(0), draw(1), prediction=prediction, actual="late")


def test_unknown_column_of_a_class_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"^prediction: got 'p_fish', expected a column of the current window"):
        compare(draw(0), draw(1), prediction=COLUMNS | {"fish": "p_fish"}, actual="late")
