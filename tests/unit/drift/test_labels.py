"""Predictions and labels of different types are compared by their values; those that can never match are refused."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from paceline.drift import DriftReport, DriftSettings, compare
from paceline.drift._classes import read_text
from paceline.drift.prediction_errors import ABSOLUTE, WRONG, ErrorKind, PredictionErrors, compute_errors
from paceline.errors import InvalidInputError

ROWS = 600


def draw(seed: int, classes: int, wrong: float = 0.1, rows: int = ROWS) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return predicted classes and labels from 0, with the given share of wrong predictions."""
    rng = np.random.default_rng(seed)
    label = rng.integers(0, classes, rows)
    return np.where(rng.random(rows) < wrong, (label + 1) % classes, label), label


def make_frames(windows: Any) -> list[pd.DataFrame]:
    return [pd.DataFrame({"temp": 1.0, "predicted": predicted, "late": late}) for predicted, late in windows]


def compare_columns(windows: Any, **options: Any) -> DriftReport:
    """Compare windows, each with the values of its predictions and labels."""
    return compare(*make_frames(windows), prediction="predicted", actual="late", **options)


def read_errors(windows: Any, error: ErrorKind = "auto") -> PredictionErrors:
    """Return the errors as ``compare`` does, without the slow estimate."""
    frames = read_text(make_frames(windows), ["predicted", "late"], keep_classes=error in ("auto", "wrong"))
    return compute_errors(*frames, "predicted", "late", error=error)


def measure(errors: PredictionErrors) -> tuple[str, float, float]:
    return errors.measure, float(errors.reference.mean()), float(errors.current.mean())


def expect_wrong(*windows: tuple[NDArray[Any], NDArray[Any]]) -> tuple[str, float, float]:
    before, after = (float(np.mean(predicted != label)) for predicted, label in windows)
    return WRONG, before, after


def write(values: NDArray[Any], names: Any) -> list[Any]:
    """Return a class's value in another form."""
    return [names[value] if not callable(names) else names(value) for value in values.tolist()]


# --- values that never match ----------------------------------------------------------------------------------------

TYPES: list[Any] = [
    int,
    float,
    bool,
    lambda value: [0, np.True_][value],
    np.int8,
    np.float32,
    np.bool_,
    lambda value: Decimal(f"{value}.00"),
    str,
    lambda value: f"{value}.00",
    lambda value: f" {value} ",
    ["False", "True"],
    ["false", "true"],
]


@pytest.mark.parametrize(
    ("given", "true"),
    [
        (["no", "yes"], int),
        (int, ["no", "yes"]),
        (["no", "yes"], bool),
        (["No", "Yes"], ["no", "yes"]),
        (["no ", "yes "], ["no", "yes"]),
        (["cat", "dog", "bird"], int),
        (lambda value: ["0,17", "0,83"][value % 2], int),
        (lambda value: ["17 %", "83 %"][value % 2], int),
        (lambda value: [0.17, 0.83][value % 2], ["no", "yes"]),
        (lambda value: ["0.17", "0.83"][value % 2], ["no", "yes"]),
    ],
)
@pytest.mark.parametrize("reference", [True, False])
def test_predictions_that_never_equal_a_label_are_refused(given: Any, true: Any, reference: bool) -> None:
    classes = 3 if given == ["cat", "dog", "bird"] else 2
    windows = [(write(predicted, given), write(label, true)) for predicted, label in (draw(i, classes) for i in (0, 1))]
    if not reference:
        windows[0] = ([None] * ROWS, windows[0][1])
    with pytest.raises(InvalidInputError) as caught:
        compare_columns(windows)
    message = str(caught.value)
    assert caught.value.field == ("late" if given is int or (callable(given) and "." in str(given(0))) else "predicted")
    assert "'predicted' has " in message
    assert "'late' has " in message
    assert "probabilities of labels that are 0 and 1" in message


@pytest.mark.parametrize(("given", "hint"), [(["No", "Yes"], True), (["no  ", "yes"], True), (["a", "b"], False)])
def test_refusal_says_whether_only_case_or_blanks_differ(given: list[str], hint: bool) -> None:
    windows = [(write(predicted, given), write(label, ["no", "yes"])) for predicted, label in (draw(0, 2), draw(1, 2))]
    with pytest.raises(InvalidInputError) as caught:
        compare_columns(windows)
    assert str(caught.value).endswith("which never match (equal except for case or blanks)") is hint


def test_values_that_match_only_for_unknown_rows_are_refused() -> None:
    predicted, label = draw(0, 2)
    given, true = write(predicted, ["no", "yes"]), write(label, ["0", "1"])
    given[7], true[9] = "unknown", "unknown"
    with pytest.raises(InvalidInputError, match=r"^predicted: got '(no|yes)', .* 'late' has '(0|1)', '(0|1)'"):
        compare_columns([(given, true), (given, true)])


@pytest.mark.parametrize("column", ["predicted", "late"])
def test_odd_value_among_numbers_is_named(column: str) -> None:
    predicted, label = draw(0, 2)
    columns: dict[str, list[Any]] = {"predicted": write(predicted, [0.17, 0.83]), "late": write(label, int)}
    columns[column][7] = "high"
    window = columns["predicted"], columns["late"]
    with pytest.raises(InvalidInputError, match=rf"^{column}: got 'high', expected only numbers, like most values in "):
        compare_columns([window, window])


@pytest.mark.parametrize("column", ["predicted", "late"])
def test_column_that_is_written_in_another_way_in_one_window_is_refused(column: str) -> None:
    windows = [[write(values, ["no", "yes"]) for values in draw(seed, 2)] for seed in (0, 1)]
    windows[1][column == "late"] = write(draw(1, 2)[column == "late"], int)
    with pytest.raises(InvalidInputError, match=r"in the current window, 'predicted' has .* 'late' has .*never match"):
        compare_columns(windows)


def test_probabilities_of_labels_other_than_0_and_1_are_refused() -> None:
    _, label = draw(0, 2)
    probability = np.where(label, 0.83, 0.17)
    for labels in ([-1, 1], [1, 2]):
        true = write(label, labels)
        with pytest.raises(InvalidInputError, match=rf"^late: got {labels[0]}.0, expected labels of 0 and 1, because"):
            compare_columns([(probability, true), (probability, true)])
        assert read_errors([(probability, true), (probability, true)], "absolute").measure == ABSOLUTE


# --- predictions that are wrong, but could be right -----------------------------------------------------------------


def test_model_that_never_predicts_a_new_class_has_an_error() -> None:
    windows = [[write(values, ["cat", "dog"]) for values in draw(seed, 2, wrong=0.0)] for seed in (0, 1)]
    windows[1][1] = ["bird" if value == "cat" else value for value in windows[1][1]]
    kind, before, after = measure(read_errors(windows))
    assert (kind, before) == (WRONG, 0.0)
    assert after == pytest.approx(0.5, abs=0.1)


def test_model_that_always_predicts_one_class_has_an_error() -> None:
    """The current window has labels of the other class only."""
    windows = [(["cat"] * ROWS, write(draw(0, 2)[1], ["cat", "dog"])), (["cat"] * ROWS, ["dog"] * ROWS)]
    assert measure(read_errors(windows))[2] == 1.0


def test_new_names_of_the_classes_in_both_columns_are_accepted() -> None:
    windows = [[write(values, names) for values in draw(0, 2)] for names in (["cat", "dog"], ["Cat", "Dog"])]
    assert measure(read_errors(windows))[0] == WRONG


def test_few_labelled_rows_may_all_be_wrong() -> None:
    predicted, label = (write(values, ["cat", "dog"]) for values in draw(0, 2, wrong=1.0))
    late = [value if row < 3 and value == label[0] else None for row, value in enumerate(label)]
    report = compare_columns([([None] * ROWS, [None] * ROWS), (predicted, late)])
    assert report.concept is not None
    assert (report.concept.verdict, report.concept.error_current) == ("not enough data", 1.0)


def test_case_distinguishes_classes_that_both_columns_have() -> None:
    windows = [[write(values, ["a", "A"]) for values in draw(seed, 2)] for seed in (0, 1)]
    assert measure(read_errors(windows)) == expect_wrong(draw(0, 2), draw(1, 2))


def test_codes_with_leading_zeros_are_classes() -> None:
    windows = [[write(values, lambda value: f"00{value}") for values in draw(seed, 30)] for seed in (0, 1)]
    assert measure(read_errors(windows))[0] == WRONG


# --- equal values of different types --------------------------------------------------------------------------------


@pytest.mark.parametrize("given", TYPES)
@pytest.mark.parametrize("true", TYPES)
def test_labels_of_0_and_1_are_equal_in_every_type(given: Any, true: Any) -> None:
    windows = [(write(predicted, given), write(label, true)) for predicted, label in (draw(0, 2), draw(1, 2, 0.4))]
    assert measure(read_errors(windows)) == expect_wrong(draw(0, 2), draw(1, 2, 0.4))


def test_decimals_and_text_are_compared_as_labels() -> None:
    windows = [
        (write(predicted, lambda value: Decimal(f"{value}.00")), write(label, lambda value: f"{value} "))
        for predicted, label in (draw(0, 2, 0.1), draw(1, 2, 0.5))
    ]
    report = compare_columns(windows)
    assert report.concept is not None
    assert (report.verdict, report.concept.measure) == ("drift", WRONG)
    assert report.concept.error_reference == expect_wrong(draw(0, 2, 0.1), draw(1, 2, 0.5))[1]


@pytest.mark.parametrize("form", [str, Decimal, lambda value: f" {value} "])
@pytest.mark.parametrize("labels", [int, str, bool, ["False", "True"]])
def test_text_of_probabilities_has_the_errors_of_probabilities(form: Any, labels: Any) -> None:
    windows = []
    for seed in (0, 1):
        predicted, label = draw(seed, 2)
        probability = [form(f"{0.2 + 0.6 * value:.2f}") for value in predicted]
        probability[3] = None if form is Decimal else "NA"
        windows.append((probability, write(label, labels)))
    kind, before, _ = measure(read_errors(windows))
    assert kind == "Brier score"
    assert before == pytest.approx(0.1 * 0.64 + 0.9 * 0.04, abs=0.02)


def test_estimate_reads_text_of_probabilities() -> None:
    def window(seed: int, level: float, form: Any) -> tuple[Any, Any]:
        rng = np.random.default_rng(seed)
        score = 1 / (1 + np.exp(-rng.normal(level, 1, 1000)))
        return [form(value) for value in score], [form(int(value)) for value in rng.random(1000) < score]

    def without_labels(form: Any) -> DriftReport:
        return compare_columns([window(0, 2, form), (window(1, 0, form)[0], [None] * 1000)])

    assert without_labels(str).estimate == without_labels(float).estimate
    assert without_labels(str).estimate is not None


@pytest.mark.parametrize("error", ["absolute", "brier"])
def test_chosen_error_of_numbers_reads_text_of_whole_numbers(error: Any) -> None:
    windows = [[write(values, str) for values in draw(seed, 2)] for seed in (0, 1)]
    assert measure(read_errors(windows, error))[1:] == expect_wrong(draw(0, 2), draw(1, 2))[1:]


def test_numbers_among_names_equal_their_text() -> None:
    forms: list[Any] = [3, "3", 3.0, np.float32(3), Decimal("3.00"), "3.0", "cat"]
    given, true = (np.array(forms, dtype=object).repeat(100) for _ in range(2))
    true[:600] = np.roll(true[:600], 100)
    assert measure(read_errors([(given, true), (given, true)]))[1:] == (0.0, 0.0)


# --- classes or quantities ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [int, float, Decimal, np.int8])
@pytest.mark.parametrize("classes", [3, 10])
def test_ids_of_classes_are_right_or_wrong(dtype: Any, classes: int) -> None:
    windows = [[write(values, dtype) for values in draw(seed, classes, wrong)] for seed, wrong in ((0, 0.1), (1, 0.4))]
    errors = read_errors(windows)
    assert measure(errors) == expect_wrong(draw(0, classes, 0.1), draw(1, classes, 0.4))
    assert "read as classes (error='wrong')" in errors.note
    assert "DriftSettings(error='absolute')" in errors.note


def test_star_ratings_are_classes_unless_the_settings_say_otherwise() -> None:
    rng = np.random.default_rng(0)
    windows = []
    for _ in range(2):
        stars = rng.integers(1, 6, ROWS)
        windows.append((np.clip(stars + rng.integers(-1, 2, ROWS), 1, 5), stars))
    for error, measure_name, notes in (("auto", WRONG, 1), ("absolute", ABSOLUTE, 0)):
        report = compare_columns(windows, settings=DriftSettings(error=error))  # type: ignore[arg-type]
        assert report.concept is not None
        assert report.concept.measure == measure_name
        assert sum("DriftSettings(error='absolute')" in note for note in report.notes) == notes


@pytest.mark.parametrize(
    ("predict", "is_whole"),
    [
        (lambda rng, count: count + rng.normal(0, 0.5, ROWS), False),  # a regression of counts
        (lambda rng, count: np.full(ROWS, 0.6), False),
        (lambda rng, count: count + 20, True),  # values that no label has
        (lambda rng, count: 10 * count, True),
    ],
)
def test_regression_of_counts_keeps_absolute_errors(predict: Any, is_whole: bool) -> None:
    rng = np.random.default_rng(0)
    counts = [rng.poisson(0.8, ROWS) for _ in range(2)]
    errors = read_errors([(predict(rng, count), count) for count in counts])
    assert errors.measure == ABSOLUTE
    assert ("DriftSettings(error='wrong')" in errors.note) is is_whole


def test_quantities_of_many_whole_numbers_keep_absolute_errors() -> None:
    rng = np.random.default_rng(0)
    minutes = [rng.integers(0, 200, ROWS) for _ in range(2)]
    assert measure(read_errors([(rng.permutation(late), late) for late in minutes]))[0] == ABSOLUTE


def test_choice_between_classes_and_quantities_can_be_made() -> None:
    windows = [draw(seed, 40) for seed in (0, 1)]
    assert measure(read_errors(windows))[0] == ABSOLUTE
    assert measure(read_errors(windows, "wrong"))[0] == WRONG


def test_whole_numbers_that_share_no_value_are_refused_as_classes() -> None:
    windows = [(predicted + 10, label) for predicted, label in (draw(0, 5), draw(1, 5))]
    with pytest.raises(InvalidInputError, match=r"^predicted: got '1\d', .* 'late' has '\d', '\d', '\d', which never"):
        compare_columns(windows, settings=DriftSettings(error="wrong"))
