"""A drift report as one self-contained HTML page: the verdict as a sentence, then the features, most severe first.

Called by ``paceline.sensors.reports``. The page has no scripts and loads no other files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from paceline.drift._confusion_table import TABLE_STYLE, confusion_tables
from paceline.drift._estimate_picture import estimate_chart, estimate_facts
from paceline.drift._findings import ConceptDrift, FeatureDrift, JointDrift, QualityProblem, SegmentDrift
from paceline.drift._performance import PerformanceEstimate
from paceline.drift._picture import distribution_chart, error_curve
from paceline.drift._report import DriftReport

_STYLE = """
:root { color-scheme: light dark; --ground: #fbfaf8; --card: #fff; --ink: #22262b; --soft: #5d6670; --rule: #dcdfe2;
  --reference: #6b7580; --current: #0a7ea4; --bad: #b3261e; --bad-ground: #fbe9e7; --good: #1d6b43;
  --good-ground: #e4f3ea; --wait: #7a5b00; --wait-ground: #fbf1d3; }
@media (prefers-color-scheme: dark) { :root { --ground: #15181b; --card: #1e2226; --ink: #e8eaec; --soft: #a3adb7;
  --rule: #363c42; --reference: #9aa5b0; --current: #4fb6d8; --bad: #ff9c92; --bad-ground: #4a1f1c;
  --good: #83d6a8; --good-ground: #17382a; --wait: #f0cf7a; --wait-ground: #40340f; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 1060px; margin: 0 auto; padding: 32px 20px 64px; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0 0 8px; } h2 { font-size: 1.15rem; margin: 40px 0 12px; }
h3 { font-size: 1rem; margin: 0; overflow-wrap: anywhere; } p { margin: 4px 0; }
.verdict { border-radius: 10px; padding: 18px 22px; } .drift, .bad-data { background: var(--bad-ground); }
.no-drift { background: var(--good-ground); } .not-enough-data, .skipped, .withheld { background: var(--wait-ground); }
.drift b.state, .bad-data b.state { color: var(--bad); } .no-drift b.state { color: var(--good); }
.not-enough-data b.state, .skipped b.state, .withheld b.state { color: var(--wait); }
b.state { white-space: nowrap; border-radius: 6px; } .badge { padding: 1px 9px; border-radius: 6px; font-size: .85rem; }
.windows { display: grid; grid-template-columns: max-content 1fr max-content; gap: 4px 14px; margin: 18px 0; }
.windows > * { overflow-wrap: anywhere; } .soft { color: var(--soft); font-size: .9rem; }
.key { display: inline-block; width: 14px; height: 14px; border-radius: 3px; vertical-align: -2px; margin-right: 6px; }
.key.r { border: 2px solid var(--reference); } .key.c { background: var(--current); opacity: .55; }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(460px, 100%), 1fr)); gap: 16px; }
.card { background: var(--card); border: 1px solid var(--rule); border-radius: 10px; padding: 14px 16px; }
.card header { display: flex; justify-content: space-between; gap: 10px; align-items: start; }
.num { font-variant-numeric: tabular-nums; } svg { width: 100%; height: auto; display: block; margin-top: 8px; }
svg text { fill: var(--soft); font-size: 11px; font-family: inherit; } .axis { stroke: var(--rule); }
.current-area { fill: var(--current); fill-opacity: .35; stroke: var(--current); }
.reference-line { fill: none; stroke: var(--reference); stroke-width: 2; }
.reference-bar { fill: var(--reference); } .current-bar { fill: var(--current); }
.error-line { fill: none; stroke: var(--current); stroke-width: 2; }
.border { stroke: var(--soft); stroke-dasharray: 4 4; }
.change-up { stroke: var(--bad); stroke-width: 2; } .change-down { stroke: var(--good); stroke-width: 2; }
table { border-collapse: collapse; } td { padding: 3px 18px 3px 0; }
"""
_SIGN = {
    "drift": "▲ drift",
    "no drift": "✓ no drift",
    "skipped": "· skipped",
    "withheld": "? withheld",
    "not enough data": "… not enough data",
    "bad data": "! bad data",
}
_TITLE = {
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
    body = [
        f'<section class="verdict {_css_class(report.verdict)}"><h1>{_TITLE[report.verdict]}</h1>'
        f"<p>{escape(report.reason)}</p></section>",
        '<div class="windows">',
        f'<span><span class="key r"></span>reference</span><span>{escape(report.reference)}</span>'
        f'<span class="num">{report.reference_rows:,} rows</span>',
        f'<span><span class="key c"></span>current</span><span>{escape(report.current)}</span>'
        f'<span class="num">{report.current_rows:,} rows</span>',
        "</div>",
        *(f'<p class="soft">{escape(note)}</p>' for note in report.notes),
    ]
    if report.quality:
        body.append(_quality_table(report.quality))
    if report.joint is not None:
        body.append(_joint_card(report.joint))
    if report.concept is not None:
        body.append(_concept_card(report.concept))
    if report.estimate is not None:
        body.append(_estimate_card(report.estimate))
    if report.segments:
        body.append(_segment_table(report.segments))
    if report.features:
        cards = "".join(_feature_card(feature) for feature in report.features)
        body.append(f'<h2>Features, most severe first</h2><div class="cards">{cards}</div>')
    if report.settings:
        rows = "".join(
            f'<tr><td>{escape(str(key))}</td><td class="num">{escape(str(value))}</td></tr>'
            for key, value in _flatten(report.settings).items()
        )
        body.append(f'<h2>Settings</h2><table class="soft">{rows}</table>')
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_TITLE[report.verdict]} · Paceline</title><style>{_STYLE}{TABLE_STYLE}</style></head>"
        f"<body><main>{''.join(body)}</main></body></html>\n"
    )


def _feature_card(feature: FeatureDrift) -> str:
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
    return (
        f'<article class="card"><header><h3>{escape(feature.name)}</h3>{_badge(feature.verdict)}</header>'
        + (f"<p>{escape(feature.reason)}</p>" if feature.reason else "")
        + (f'<p class="soft num">{escape(" · ".join(facts))}</p>' if facts else "")
        + f"{distribution_chart(feature)}</article>"
    )


def _quality_table(problems: Sequence[QualityProblem]) -> str:
    rows = "".join(
        f"<tr><td>{_badge('bad data') if one.severe else ''}</td><td>{escape(one.kind)}</td>"
        f"<td>{escape(one.column)}</td><td>{escape(one.reason)}</td></tr>"
        for one in problems
    )
    return f"<h2>Data quality</h2><table>{rows}</table>"


def _segment_table(segments: Sequence[SegmentDrift]) -> str:
    rows = "".join(
        f"<tr><td>{_badge(one.verdict)}</td><td>{escape(one.name)}</td>"
        f'<td class="num">{one.reference_rows:,} and {one.current_rows:,} rows</td>'
        f"<td>{escape(one.reason)}</td></tr>"
        for one in segments
    )
    return f"<h2>Segments</h2><table>{rows}</table>"


def _flatten(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings without nested mappings: the keys of ``quality`` become ``quality.severe`` and so on."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            flat |= {f"{key}.{name}": one for name, one in _flatten(value).items()}
        else:
            flat[key] = ", ".join(value) if isinstance(value, list | tuple) else value
    return flat


def _joint_card(joint: JointDrift) -> str:
    facts = f"p {_format_p_value(joint.p_value)} (Mann-Whitney, {joint.rows:,} rows)"
    return (
        f'<h2>All features together</h2><article class="card"><header><h3>Domain classifier</h3>{_badge(joint.verdict)}'
        f'</header><p>{escape(joint.reason)}</p><p class="soft num">{escape(facts)}</p></article>'
    )


def _concept_card(concept: ConceptDrift) -> str:
    facts = [f"{concept.reference_rows:,} reference and {concept.current_rows:,} current rows have a label"]
    if concept.error_reference is not None and concept.error_current is not None:
        facts.append(f"{concept.measure} {concept.error_reference:.3g} → {concept.error_current:.3g}")
    if concept.auc_reference is not None or concept.auc_current is not None:
        facts.append(f"AUC {_format_number(concept.auc_reference)} → {_format_number(concept.auc_current)}")
    return (
        '<h2>Model error</h2><article class="card"><header>'
        f"<h3>{escape(concept.detector)} on the {escape(concept.measure)}</h3>{_badge(concept.verdict)}</header>"
        f'<p>{escape(concept.reason)}</p><p class="soft num">{escape(" · ".join(facts))}</p>'
        f"{error_curve(concept)}{confusion_tables(concept.confusion_reference, concept.confusion_current)}</article>"
    )


def _estimate_card(estimate: PerformanceEstimate) -> str:
    facts = "".join(f'<p class="soft num">{escape(fact)}</p>' for fact in estimate_facts(estimate))
    return (
        '<h2>Estimated model error</h2><article class="card"><header>'
        f"<h3>{estimate.method} of the {escape(estimate.measure)}</h3>{_badge(estimate.verdict)}</header>"
        f"<p>{escape(estimate.reason)}</p>{facts}{estimate_chart(estimate)}</article>"
    )


def _badge(verdict: str) -> str:
    return f'<span class="badge {_css_class(verdict)}"><b class="state">{_SIGN[verdict]}</b></span>'


def _css_class(verdict: str) -> str:
    return verdict.replace(" ", "-")


def _format_number(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.3f}"


def _format_p_value(value: float | None) -> str:
    if value is None:
        return "n/a"
    return "< 1e-12" if value < 1e-12 else f"{value:.2g}"
