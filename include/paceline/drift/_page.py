"""A drift report as one self-contained HTML page: the verdict as a sentence, then the features, most severe first.

Called by ``paceline.sensors.reports``. The page has no scripts and loads no other files. The folder ``page``
has its templates.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from paceline.contract import ConceptDrift, Confusion, DriftReport, FeatureDrift, JointDrift
from paceline.drift._estimate_picture import estimate_chart, estimate_facts
from paceline.drift._picture import distribution_chart, error_curve

_SIGNS = {
    "drift": "▲ drift",
    "no drift": "✓ no drift",
    "skipped": "· skipped",
    "withheld": "? withheld",
    "not enough data": "… not enough data",
    "bad data": "! bad data",
}
_TITLES = {
    "drift": "The data has drifted",
    "no drift": "No drift",
    "not enough data": "Not enough data for a verdict",
    "no champion": "No champion to compare with",
    "bad data": "The current data is broken",
    "nothing compared": "No feature was compared",
}


def to_html(report: DriftReport) -> str:
    """Return the report as an HTML page.

    >>> page = to_html(DriftReport("no drift", "No drift in 3 features.", 500, 400, current="May <2013>"))
    >>> "May &lt;2013&gt;" in page, "<script" in page
    (True, False)
    """
    return _template().render(report=report, title=_TITLES[report.verdict], settings=_flatten(report.settings))


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("paceline.drift", "page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "css_class": lambda verdict: verdict.replace(" ", "-"),
        "score": _format_number,
        "thousands": "{:,}".format,
    }
    functions = (concept_facts, distribution_chart, error_curve, estimate_chart, estimate_facts, feature_facts)
    environment.globals |= {one.__name__: one for one in (*functions, joint_facts, score_rows)} | {"signs": _SIGNS}
    return environment.get_template("page.html.jinja")


def feature_facts(feature: FeatureDrift) -> str:
    """Return the statistics of a feature's test, and its missing values."""
    facts = []
    if feature.test == "domain classifier":
        values = "texts" if feature.kind == "text" else f"vectors of {feature.dimensions} numbers"
        facts.append(f"AUC {_format_number(feature.statistic)} (classifier of {values})")
        facts.append(f"adjusted p {_format_p_value(feature.adjusted_p_value)}")
    elif feature.test:
        sign = "KS statistic" if feature.test.startswith("Kolm") else "total variation distance"
        facts.append(f"{sign} {_format_number(feature.effect)}")
        if feature.kind != "text":
            facts.append(f"PSI {_format_number(feature.psi)}")
        facts.append(f"adjusted p {_format_p_value(feature.adjusted_p_value)} ({feature.test})")
    if feature.missing_reference or feature.missing_current:
        facts.append(f"missing {feature.missing_reference:.1%} → {feature.missing_current:.1%}")
    return " · ".join(facts)


def joint_facts(joint: JointDrift) -> str:
    """Return the probability and the rows of the joint test."""
    return f"p {_format_p_value(joint.p_value)} (Mann-Whitney, {joint.rows:,} rows)"


def concept_facts(concept: ConceptDrift) -> str:
    """Return the labelled rows, and the model's error and AUC in both windows."""
    facts = [f"{concept.reference_rows:,} reference and {concept.current_rows:,} current rows have a label"]
    if concept.error_reference is not None and concept.error_current is not None:
        facts.append(f"{concept.measure} {concept.error_reference:.3g} → {concept.error_current:.3g}")
    if concept.auc_reference is not None or concept.auc_current is not None:
        facts.append(f"AUC {_format_number(concept.auc_reference)} → {_format_number(concept.auc_current)}")
    return " · ".join(facts)


def score_rows(
    reference: Confusion | None, current: Confusion | None
) -> list[tuple[str, list[tuple[float | None, ...]]]]:
    """Return precision, recall and F1 of each class that has any, in both windows, and their macro means."""
    windows, measures = (reference, current), ("precision", "recall", "f1")
    classes = next(one.classes for one in windows if one is not None)
    rows = [
        (name, [tuple(getattr(one, measure)[i] if one else None for one in windows) for measure in measures])
        for i, name in enumerate(classes)
    ]
    means = [tuple(getattr(one, f"macro_{measure}") if one else None for one in windows) for measure in measures]
    known = [(name, pairs) for name, pairs in rows if any(score is not None for pair in pairs for score in pair)]
    return [*known, ("macro mean", means)]


def _flatten(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings without nested mappings: the keys of ``quality`` become ``quality.severe`` and so on."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            flat |= {f"{key}.{name}": one for name, one in _flatten(value).items()}
        else:
            flat[key] = ", ".join(value) if isinstance(value, list | tuple) else value
    return flat


def _format_number(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.3f}"


def _format_p_value(value: float | None) -> str:
    if value is None:
        return "n/a"
    return "< 1e-12" if value < 1e-12 else f"{value:.2g}"
