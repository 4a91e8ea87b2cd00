"""The drift report can be stored as JSON and has a self-contained page and a small summary."""

from __future__ import annotations

import json
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest

from paceline.drift import DriftReport, compare, to_html
from paceline.errors import InvalidInputError


@pytest.fixture(scope="module")
def report() -> DriftReport:
    rng = np.random.default_rng(0)

    def window(shift: float, wrong: float) -> pd.DataFrame:
        late = rng.integers(0, 2, 1000)
        return pd.DataFrame(
            {
                "wind <m/s>": rng.normal(shift, 1, 1000),
                "steady": rng.normal(0, 1, 1000),
                "carrier": rng.choice(["A&A", "UA"], 1000),
                "constant": 1.0,
                "gone": np.nan,
                "late": late,
                "predicted": np.where(rng.random(1000) < wrong, 1 - late, late),
            }
        )

    return compare(
        window(0, 0.1), window(1, 0.4), prediction="predicted", actual="late", current_name="<script>alert(1)</script>"
    )


class Page(HTMLParser):
    """A parser that collects a page's tags and text, and raises an error if a tag is not closed."""

    VOID = ("meta", "path", "line", "rect", "polyline")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] not in (["style"], ["title"]):
            self.text += data


def test_report_round_trips_through_json_and_ignores_unknown_keys(report: DriftReport) -> None:
    data = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert DriftReport.from_dict(data) == report
    data["later"] = 1
    data["features"][0]["later"] = 2
    assert DriftReport.from_dict(data) == report
    with pytest.raises(InvalidInputError, match=r"^format: got 99, expected 1"):
        DriftReport.from_dict({**data, "format": 99})


def test_report_without_auc_can_be_read(report: DriftReport) -> None:
    assert report.concept is not None
    data = report.to_dict()
    for key in ("auc_reference", "auc_current"):
        del data["concept"][key]
    assert DriftReport.from_dict(data) == report
    scored = replace(report, concept=replace(report.concept, auc_reference=0.91, auc_current=0.53))
    assert DriftReport.from_dict(scored.to_dict()) == scored


@pytest.mark.parametrize(
    ("before", "after", "fact"),
    [(0.91, 0.53, "AUC 0.910 → 0.530"), (None, 0.53, "AUC n/a → 0.530"), (None, None, None)],
)
def test_page_shows_the_auc_after_the_error(
    report: DriftReport, before: float | None, after: float | None, fact: str | None
) -> None:
    assert report.concept is not None
    text = Page(to_html(replace(report, concept=replace(report.concept, auc_reference=before, auc_current=after)))).text
    if fact is None:
        assert "AUC" not in text
    else:
        assert text.index("share of wrong predictions 0.") < text.index(fact)


def test_summary_is_small_and_names_the_drift(report: DriftReport) -> None:
    summary = report.summary()
    assert len(json.dumps(summary.to_json())) < 2000
    assert summary.drifted_features == ["wind <m/s>"]
    assert summary.concept_drift is True
    assert list(summary.statistics) == ["wind <m/s>"]


def test_page_is_self_contained_with_light_and_dark_colours(report: DriftReport) -> None:
    page = Page(to_html(report))
    names = {tag for tag, _ in page.tags}
    assert not names & {"script", "link", "img", "iframe"}
    assert not [attrs for _, attrs in page.tags if {"src", "href"} & set(attrs)]
    assert "http" not in to_html(report)
    assert "prefers-color-scheme: dark" in to_html(report)


def test_page_shows_the_verdict_then_features_by_severity(report: DriftReport) -> None:
    page = Page(to_html(report))
    order = [
        "The data has drifted",
        "1,000 rows",
        "adwin on the",
        "its distribution changed",
        "steady",
        "constant in both",
    ]
    places = [page.text.index(word) for word in order]
    assert places == sorted(places)
    pictures = [attrs["aria-label"] or "" for tag, attrs in page.tags if tag == "svg"]
    for name in ("wind <m/s>", "steady", "carrier", "Running"):
        assert any(name in picture for picture in pictures)


def test_page_is_rendered_even_if_there_is_not_enough_data() -> None:
    text = to_html(DriftReport("not enough data", "current: got 0 rows", 500, 0))
    assert "Not enough data for a verdict" in Page(text).text
