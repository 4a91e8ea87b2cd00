"""Columns of free text: a classifier of character n-grams finds drift; identifiers and times are no text."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any

import numpy as np
import pandas as pd
import pytest

from paceline.drift import DriftReport, FeatureDrift, compare, to_html
from paceline.drift._kinds import is_text

_LATE = "my order is late where parcel has been not arrived yet since monday please check the tracking number"
_BROKEN = "screen broken after fall warranty repair battery does not charge device hot noise inside replace"
NEW_YEAR = datetime(2030, 1, 1)
LATE, BROKEN = _LATE.split(), _BROKEN.split()


def texts(seed: int, rows: int = 600, words: Sequence[str] = LATE, least: int = 6) -> list[str]:
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(words, rng.integers(least, 16))) for _ in range(rows)]


def compared(before: list[Any], after: list[Any], **arguments: Any) -> tuple[DriftReport, FeatureDrift]:
    report = compare(pd.DataFrame({"ticket": before}), pd.DataFrame({"ticket": after}), **arguments)
    return report, report.features[0]


def test_equal_texts_raise_false_alarms_at_most_at_the_nominal_rate() -> None:
    features = [compared(texts(2 * seed), texts(2 * seed + 1))[1] for seed in range(10)]
    assert {(feature.kind, feature.test) for feature in features} == {("text", "domain classifier")}
    assert sum(feature.verdict != "no drift" for feature in features) <= 1  # the nominal rate is 1 %


def test_new_topic_is_drift_and_the_reason_names_its_words() -> None:
    mixed = texts(1, 300) + texts(2, 300, BROKEN)
    report, feature = compared(texts(0), mixed)
    assert (report.verdict, report.drifted_features, report.quality) == ("drift", ["ticket"], ())
    assert feature.effect == pytest.approx(2 * (feature.statistic or 0.0) - 1)
    assert feature.reason.startswith("a classifier distinguishes its texts in the two windows (AUC 0.")
    assert any(f'"{word}" in ' in feature.reason for word in BROKEN)
    assert DriftReport.from_dict(report.to_dict()) == report
    assert "classifier of texts" in to_html(report)


def test_text_without_spaces_is_compared() -> None:
    rng = np.random.default_rng(0)
    before, after = (
        ["".join(rng.choice(list(signs), 24)) for _ in range(600)]
        for signs in ("订单没有收到请帮助", "屏幕坏了需要退款谢")
    )
    _, feature = compared(before, after)
    assert (feature.kind, feature.verdict) == ("text", "drift")
    assert feature.reason.endswith("of the texts")


@pytest.mark.parametrize(
    "change", [str.upper, lambda text: f"[web] {text}", lambda text: text.replace(" ", "  \n")[:9]]
)
def test_new_form_of_the_texts_is_drift(change: Callable[[str], str]) -> None:
    _, feature = compared(texts(0), [change(text) for text in texts(1)])
    assert (feature.kind, feature.verdict) == ("text", "drift")


def test_numbers_and_times_in_texts_are_no_drift() -> None:
    before, after = (
        [
            f"2030-0{month}-11 09:{number % 60}:00 {text} (code {month}{number})"
            for number, text in enumerate(texts(month))
        ]
        for month in (1, 7)
    )
    assert compared(before, after)[1].verdict == "no drift"


def test_shares_of_log_templates_are_compared() -> None:
    rng = np.random.default_rng(0)

    def lines(failures: float) -> list[str]:
        forms = np.array(["request {} took {} ms", "request {} failed after {} attempts"])
        return [
            form.format(*rng.integers(10**6, size=2)) for form in rng.choice(forms, 600, p=[1 - failures, failures])
        ]

    _, same = compared(lines(0.1), lines(0.1))
    assert (same.kind, same.test, same.verdict) == ("text", "chi-squared", "no drift")
    report, drifted = compared(lines(0.1), lines(0.4))
    assert drifted.verdict == "drift"
    assert drifted.reason.startswith('the shares of its most frequent texts changed: "')
    assert "total variation distance" in to_html(report)
    assert "PSI" not in to_html(report)


def test_one_text_instead_of_all_others_is_drift() -> None:
    _, feature = compared(texts(0), ["the comment has been removed"] * 600)
    assert (feature.kind, feature.test, feature.verdict) == ("text", "chi-squared", "drift")


def test_repeated_texts_are_not_recognised() -> None:
    words = ["".join(letters) for letters in np.random.default_rng(9).choice(list("abcdefghij"), (3000, 5))]
    for seed in range(3):
        report, feature = compared(texts(2 * seed, 300, words) * 2, texts(2 * seed + 1, 300, words) * 2)
        assert (feature.kind, feature.test, report.verdict) == ("text", "domain classifier", "no drift")


def test_word_of_a_few_texts_is_not_named() -> None:
    current = [
        f"Ms Secretname{number % 5}: {text}" if number < 10 else text
        for number, text in enumerate(texts(1, 600, BROKEN))
    ]
    _, feature = compared(texts(0), current)
    assert feature.verdict == "drift"
    assert "Secret" not in feature.reason


@pytest.mark.parametrize(
    "make",
    [
        lambda n: str(uuid.UUID(int=n**9)),
        lambda n: sha256(bytes([n % 256])).hexdigest() + str(n),
        lambda n: " ".join(sha256(bytes([n % 256])).hexdigest()[i : i + 4] for i in range(0, 32, 4)) + str(n),
        lambda n: f"anna.smith{n}@mail.example.com",
        lambda n: f"Anna Smith <smith{n}@mail.example.com>",
        lambda n: f"https://shop.example.com/late/order-{n}?where=my&parcel=yes",
        lambda n: f"Anna Smith{n}",
        lambda n: f"/var/log/late/order {n}.txt",
        lambda n: f"DE12 5001 0517 {n} 4073 24",
        lambda n: (NEW_YEAR + timedelta(hours=n)).strftime("%a %b %d %Y %H:%M:%S GMT+0100 (Central European Time)"),
        lambda n: (NEW_YEAR + timedelta(hours=n)).strftime("%A, %d %B %Y, %I:%M %p"),
    ],
)  # fmt: skip
def test_identifiers_and_times_are_no_text(make: Callable[[int], str]) -> None:
    values = [make(number) for number in range(1, 601)]
    assert not is_text(pd.Series(values))
    assert compared(values, values)[1].kind == "categorical"


def test_categories_of_several_words_are_no_text() -> None:
    titles = ["head of sales and marketing", "senior engineer for motors", "chief of staff in Rome"] * 200
    _, feature = compared(titles, titles[:300])
    assert (feature.kind, feature.verdict) == ("categorical", "no drift")
    assert not is_text(pd.Series(texts(0), dtype="category"))


def test_text_named_as_categorical_is_compared_as_labels() -> None:
    _, feature = compared(texts(0), texts(1), categorical=["ticket"])
    assert (feature.kind, feature.verdict) == ("categorical", "skipped")


def test_too_few_texts_are_not_enough_data() -> None:
    report, feature = compared(texts(0, 499), texts(1, 499))
    assert (report.verdict, feature.verdict) == ("not enough data", "skipped")
    assert feature.reason == "the windows have 499 and 499 values, but each needs at least 500"


def test_missing_and_broken_texts_are_reported() -> None:
    report, _ = compared(texts(0), [*texts(1, 300), *[None] * 300])
    assert report.quality[0].kind == "missing values"
    report, _ = compared(texts(0), list(range(600)))
    assert (report.verdict, report.quality[0].kind) == ("bad data", "changed type")


def test_other_features_are_compared_jointly_without_the_texts() -> None:
    rng = np.random.default_rng(0)
    frames = [
        pd.DataFrame(rng.multivariate_normal([0, 0], [[1, rho], [rho, 1]], 600), columns=["temp", "wind"]).assign(
            ticket=texts(seed)
        )
        for seed, rho in enumerate((0.9, -0.9))
    ]
    report = compare(*frames)
    assert report.joint is not None
    assert (report.drifted_features, report.joint.verdict) == ([], "drift")
