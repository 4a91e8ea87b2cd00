"""Facts and a picture of an estimated error for the report's page. Called by ``paceline.drift._page``."""

from __future__ import annotations

from html import escape

from paceline.contract import PerformanceEstimate
from paceline.drift._picture import BOTTOM, LEFT, WIDTH

HEIGHT = 200


def estimate_facts(estimate: PerformanceEstimate) -> list[str]:
    """Return the realised and the estimated errors with their numbers of rows, one fact each.

    >>> facts = estimate_facts(PerformanceEstimate("DLE", "skipped", "", "mean absolute error", 900, 2.5))
    >>> facts
    ['900 reference rows: realised 2.5']
    """
    facts = []
    if estimate.reference_error is not None:
        facts.append(f"{estimate.reference_rows:,} reference rows: realised {estimate.reference_error:.3g}")
    if estimate.error is not None:
        facts.append(
            f"{estimate.rows:,} current rows without labels: estimated {estimate.error:.3g} "
            f"(standard error {estimate.standard_error:.2g}, p {estimate.p_value:.2g})"
        )
    if estimate.labelled_error is not None:
        facts.append(
            f"{estimate.labelled_rows:,} current rows with labels: estimated {estimate.labelled_error:.3g} "
            f"(standard error {estimate.labelled_standard_error:.2g}), realised {estimate.realised_error:.3g}, "
            f"difference {estimate.difference:+.2g}"
        )
    if estimate.warning:
        facts.append(f"Unreliable: {estimate.warning}")
    return facts


def estimate_chart(estimate: PerformanceEstimate) -> str:
    """Return a picture of the error by period, or "" with fewer than two periods.

    The line is the estimate, and the area around it is two standard errors wide on each side. The squares are realised
    errors, and the dashed line is the realised error of the reference.
    """
    periods = estimate.periods
    if len(periods) < 2 or estimate.reference_error is None:
        return ""
    width = 2 * WIDTH
    bounds = [(max(p.error - 2 * p.standard_error, 0.0), p.error + 2 * p.standard_error) for p in periods]
    realised = [p.realised_error for p in periods]
    top = max(*(high for _, high in bounds), *(error or 0.0 for error in realised), estimate.reference_error, 1e-9)

    def x(period: int) -> float:
        return LEFT + (width - LEFT - 8) * (period + 0.5) / len(periods)

    def y(error: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - 10) * error / top

    upper = [f"{x(i):.1f},{y(high):.1f}" for i, (_, high) in enumerate(bounds)]
    lower = [f"{x(i):.1f},{y(low):.1f}" for i, (low, _) in enumerate(bounds)]
    line = " ".join(f"{x(i):.1f},{y(p.error):.1f}" for i, p in enumerate(periods))
    marks = "".join(
        f'<rect class="reference-bar" x="{x(i) - 4:.1f}" y="{y(error) - 4:.1f}" width="8" height="8"/>'
        for i, error in enumerate(realised)
        if error is not None
    )
    label = escape(f"Estimated {estimate.measure} by period, with realised errors where labels are known", quote=True)
    before = y(estimate.reference_error)
    return (
        f'<svg class="wide" viewBox="0 0 {width} {HEIGHT}" role="img" aria-label="{label}">'
        f'<path class="current-area" d="M{" L".join([*upper, *reversed(lower)])}Z"/>'
        f'<polyline class="error-line" points="{line}"/>{marks}'
        f'<line class="border" x1="{LEFT}" x2="{width - 8}" y1="{before:.1f}" y2="{before:.1f}"/>'
        f'<line class="axis" x1="{LEFT}" x2="{width - 8}" y1="{y(0):.1f}" y2="{y(0):.1f}"/>'
        f'<text x="{LEFT - 4}" y="16" text-anchor="end">{top:.3g}</text>'
        f'<text x="{LEFT - 4}" y="{y(0):.1f}" text-anchor="end">0</text>'
        f'<text x="{LEFT}" y="{HEIGHT - 6}">{escape(periods[0].start)}</text>'
        f'<text x="{width - 8}" y="{HEIGHT - 6}" text-anchor="end">{escape(periods[-1].end)}</text></svg>'
        '<p class="soft">Line: estimate, with two standard errors, which include any error of rows that are unlike the '
        "reference. Squares: realised error of the rows with labels. Dashed line: realised error of the reference.</p>"
    )
