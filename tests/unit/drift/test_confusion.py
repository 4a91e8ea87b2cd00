"""Labels and predicted classes of both windows are counted, with precision, recall and F1, and shown on the page."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import confusion_matrix, f1_score, precision_recall_fscore_support

from paceline.drift import ConceptDrift, Confusion, DriftReport, to_html
from paceline.drift._classes import encode_classes
from paceline.drift._confusion import MAX_CLASSES, OTHER, count_confusion
from paceline.drift.prediction_errors import ErrorKind, PredictionErrors, compute_errors


def draw(seed: int, classes: int, wrong: float, rows: int = 500) -> pd.DataFrame:
    """Return predictions and labels; low classes are frequent."""
    rng = np.random.default_rng(seed)
    label = np.minimum(rng.geometric(0.3, rows) - 1, classes - 1)
    predicted = np.where(rng.random(rows) < wrong, rng.integers(0, classes, rows), label)
    return pd.DataFrame({"predicted": predicted, "late": label})


def count(reference: pd.DataFrame, current: pd.DataFrame, **options: Any) -> tuple[Confusion, Confusion]:
    errors = compute_errors(reference, current, "predicted", "late", **options)
    before, after = errors.confusions
    assert before is not None
    assert after is not None
    return before, after


def test_counts_and_scores_equal_those_of_scikit_learn() -> None:
    frames = draw(0, 4, 0.2), draw(1, 4, 0.6)
    names = np.array(["bird", "cat", "dog", "fish"])
    for frame, confusion in zip(frames, count(*(frame.map(names.__getitem__) for frame in frames)), strict=True):
        assert confusion.classes == tuple(names)
        labels, predicted = frame["late"], frame["predicted"]
        assert confusion.counts == tuple(map(tuple, confusion_matrix(labels, predicted).tolist()))
        expected = precision_recall_fscore_support(labels, predicted, zero_division=0.0)[:3]
        for scores, values in zip((confusion.precision, confusion.recall, confusion.f1), expected, strict=True):
            assert scores == pytest.approx(values)
        macro = confusion.macro_precision, confusion.macro_recall, confusion.macro_f1
        assert macro == pytest.approx([values.mean() for values in expected])


def test_class_without_labels_or_predictions_has_no_score() -> None:
    _, confusion = count_confusion(encode_classes(["a", "a", "b"], ["a", "c", "c"], 0))
    assert confusion is not None
    assert confusion.classes == ("a", "b", "c")
    assert confusion.precision == (0.5, 0.0, None)
    assert confusion.recall == (1.0, None, 0.0)
    assert confusion.f1 == (pytest.approx(2 / 3), 0.0, 0.0)
    assert confusion.macro_f1 == pytest.approx(f1_score(["a", "c", "c"], ["a", "a", "b"], average="macro"))


def test_rare_classes_are_counted_together_but_not_scored_together() -> None:
    frames = draw(0, 30, 0.9, 20_000), draw(1, 30, 0.9, 20_000)
    for frame, confusion in zip(frames, count(*frames, error="wrong"), strict=True):
        assert (len(confusion.classes), confusion.classes[-1]) == (MAX_CLASSES + 1, OTHER)
        assert sum(map(sum, confusion.counts)) == len(frame)
        assert (confusion.precision[-1], confusion.recall[-1], confusion.f1[-1]) == (None, None, None)
        assert confusion.macro_f1 == pytest.approx(f1_score(frame["late"], frame["predicted"], average="macro"))
        shown = list(map(int, confusion.classes[:-1]))
        assert shown == sorted(shown)
        inner = confusion_matrix(frame["late"], frame["predicted"], labels=shown)
        assert [row[:-1] for row in confusion.counts[:-1]] == list(map(tuple, inner.tolist()))


@pytest.mark.parametrize("error", ["auto", "brier", "log_loss", "wrong"])
def test_probabilities_are_counted_from_the_threshold(error: ErrorKind) -> None:
    frame = pd.DataFrame({"predicted": [0.1, 0.3, 0.6, 0.3, 0.2], "late": [0, 0, 1, 1, 1]})
    before, after = count(frame, frame, error=error, threshold=0.25)
    assert before == after
    assert (after.classes, after.counts) == (("0", "1"), ((1, 1), (1, 2)))


def test_values_that_are_not_classes_are_not_counted() -> None:
    def errors(predicted: list[float], late: list[float], **options: Any) -> PredictionErrors:
        frame = pd.DataFrame({"predicted": predicted, "late": late})
        return compute_errors(frame, frame, "predicted", "late", **options)

    assert errors([2.5, 3.5], [2.0, 4.0]).confusions == (None, None)
    assert errors([0.2, 0.7], [0, 1], error="auc").confusions == (None, None)
    assert errors([0, 1], [0, 1], error="absolute").confusions == (None, None)


def test_window_without_labels_is_not_counted() -> None:
    frame = draw(0, 3, 0.1)
    assert compute_errors(None, frame, "predicted", "late").confusions[0] is None
    assert compute_errors(frame, frame.assign(late=np.nan), "predicted", "late").confusions[1] is None


# --- report -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def report() -> DriftReport:
    names = np.array(["<cat>", "dog", "bird"])
    frames = [draw(seed, 3, 0.2).map(names.__getitem__) for seed in (0, 1)]
    before, after = count(*frames)
    measure = "share of wrong predictions"
    concept = ConceptDrift("adwin", "no drift", "", measure, confusion_reference=before, confusion_current=after)
    return DriftReport("no drift", "No drift.", 500, 500, concept=concept)


def test_counts_round_trip_through_json(report: DriftReport) -> None:
    data = report.to_dict()
    assert DriftReport.from_dict(data) == report
    data["concept"]["confusion_current"]["later"] = 1
    assert DriftReport.from_dict(data) == report


def test_report_without_counts_can_be_read(report: DriftReport) -> None:
    data = report.to_dict()
    del data["concept"]["confusion_reference"], data["concept"]["confusion_current"]
    assert report.concept is not None
    older = replace(report.concept, confusion_reference=None, confusion_current=None)
    assert DriftReport.from_dict(data).concept == older


def test_page_shows_counts_and_scores_with_headers_and_captions(report: DriftReport) -> None:
    assert report.concept is not None
    before, after = report.concept.confusion_reference, report.concept.confusion_current
    assert before is not None
    assert after is not None
    page = to_html(report)
    assert page.count('scope="row">&lt;cat&gt;</th>') == 3
    assert "<cat>" not in page
    for name in ("reference", "current"):
        assert f"<caption>Rows of the {name} window by label (down) and prediction (across)</caption>" in page
    assert f">{before.counts[0][0]:,}</td>" in page
    assert f"{before.precision[0]:.3f} → {after.precision[0]:.3f}" in page
    assert f"{before.macro_f1:.3f} → {after.macro_f1:.3f}" in page


def test_page_without_a_labelled_reference_shows_the_current_window(report: DriftReport) -> None:
    assert report.concept is not None
    alone = replace(report, concept=replace(report.concept, confusion_reference=None))
    page = to_html(alone)
    assert "Rows of the reference window by label" not in page
    assert f"n/a → {asdict(alone)['concept']['confusion_current']['macro_f1']:.3f}" in page
