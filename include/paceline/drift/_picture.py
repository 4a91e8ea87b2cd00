"""Pictures of a drift report as inline SVG, coloured by the page's light or dark style.

Called by ``paceline.drift._page``. Unlike a raster image, SVG is small, sharp at any size, and can be styled by CSS.
"""

from __future__ import annotations

from html import escape

from paceline.contract import ConceptDrift, FeatureDrift, Histogram

WIDTH, HEIGHT, LEFT, BOTTOM = 460, 170, 40, 22


def distribution_chart(feature: FeatureDrift) -> str:
    """Return a picture of a feature's distribution in both windows, or "" if it has no histogram.

    >>> from paceline.contract import Histogram
    >>> feature = FeatureDrift("a<b", "categorical", "no drift", histogram=Histogram((1.0,), (1.0,), labels=("x",)))
    >>> "a&lt;b" in distribution_chart(feature)
    True
    """
    histogram = feature.histogram
    if histogram is None or not histogram.reference:
        return ""
    label = escape(f"Distribution of {feature.name}: reference and current window", quote=True)
    return _area_chart(histogram, label) if histogram.edges else _bar_chart(histogram, label)


def _area_chart(histogram: Histogram, label: str) -> str:
    top = max(*histogram.reference, *histogram.current, 1e-9)
    count = len(histogram.reference)

    def x(i: float) -> float:
        return LEFT + (WIDTH - LEFT - 8) * i / count

    def y(share: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - 8) * share / top

    def outline(shares: tuple[float, ...]) -> str:
        steps = "".join(f"V{y(s):.1f}H{x(i + 1):.1f}" for i, s in enumerate(shares))
        return f"M{x(0):.1f},{y(0):.1f}{steps}V{y(0):.1f}"

    ticks = "".join(
        f'<text x="{x(i):.1f}" y="{HEIGHT - 6}" text-anchor="{anchor}">{_format_number(histogram.edges[i])}</text>'
        for i, anchor in ((0, "start"), (count // 2, "middle"), (count, "end"))
    )
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">'
        f'<path class="current-area" d="{outline(histogram.current)}"/>'
        f'<path class="reference-line" d="{outline(histogram.reference)}"/>'
        f'<line class="axis" x1="{LEFT}" x2="{WIDTH - 8}" y1="{y(0):.1f}" y2="{y(0):.1f}"/>'
        f'<text x="{LEFT - 4}" y="16" text-anchor="end">{top:.0%}</text>{ticks}</svg>'
    )


def _bar_chart(histogram: Histogram, label: str) -> str:
    row, text = 30, 130
    height = row * len(histogram.labels) + 6
    top = max(*histogram.reference, *histogram.current, 1e-9)
    scale = (WIDTH - text - 52) / top
    parts = []
    for i, (name, r, c) in enumerate(zip(histogram.labels, histogram.reference, histogram.current, strict=True)):
        y = 4 + i * row
        shown = name if len(name) <= 18 else name[:17] + "…"
        parts.append(
            f'<text x="{text - 6}" y="{y + 16}" text-anchor="end">{escape(shown)}<title>{escape(name)}</title></text>'
            f'<rect class="reference-bar" x="{text}" y="{y + 1}" width="{r * scale:.1f}" height="10"/>'
            f'<text x="{text + r * scale + 4:.1f}" y="{y + 10}">{_format_percent(r)}</text>'
            f'<rect class="current-bar" x="{text}" y="{y + 13}" width="{c * scale:.1f}" height="10"/>'
            f'<text x="{text + c * scale + 4:.1f}" y="{y + 22}">{_format_percent(c)}</text>'
        )
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{label}">{"".join(parts)}</svg>'


def error_curve(concept: ConceptDrift) -> str:
    """Return a picture of the running error that marks each change and the start of the current window."""
    if len(concept.curve) < 2:
        return ""
    width, height = 2 * WIDTH, 200
    first, last = concept.curve[0][0], concept.curve[-1][0]
    top = max(*(error for _, error in concept.curve), 1e-9) * 1.1

    def x(row: float) -> float:
        return LEFT + (width - LEFT - 8) * (row - first) / max(1, last - first)

    def y(error: float) -> float:
        return height - BOTTOM - (height - BOTTOM - 20) * error / top

    line = " ".join(f"{x(row):.1f},{y(error):.1f}" for row, error in concept.curve)
    marks = "".join(
        f'<line class="{"change-up" if c.is_rise else "change-down"}" x1="{x(c.row):.1f}" x2="{x(c.row):.1f}" '
        f'y1="18" y2="{y(0):.1f}"/>'
        f'<text x="{x(c.row):.1f}" y="12" text-anchor="middle">{"▲" if c.is_rise else "▼"}</text>'
        for c in concept.changes
        if first <= c.row <= last
    )
    border = ""
    if first < 0:
        border = (
            f'<line class="border" x1="{x(0):.1f}" x2="{x(0):.1f}" y1="18" y2="{y(0):.1f}"/>'
            f'<text x="{x(0):.1f}" y="{height - 6}" text-anchor="middle">the current window begins</text>'
        )
    label = escape(f"Running {concept.measure} through the reference and the current window", quote=True)
    return (
        f'<svg class="wide" viewBox="0 0 {width} {height}" role="img" aria-label="{label}">'
        f'{border}<polyline class="error-line" points="{line}"/>{marks}'
        f'<line class="axis" x1="{LEFT}" x2="{width - 8}" y1="{y(0):.1f}" y2="{y(0):.1f}"/>'
        f'<text x="{LEFT - 4}" y="{y(top / 1.1):.1f}" text-anchor="end">{_format_number(top / 1.1)}</text>'
        f'<text x="{LEFT - 4}" y="{y(0):.1f}" text-anchor="end">0</text>'
        f'<text x="{LEFT}" y="{height - 6}">row {first}</text>'
        f'<text x="{width - 8}" y="{height - 6}" text-anchor="end">row {last}</text></svg>'
    )


def _format_number(number: float) -> str:
    return f"{number:.4g}"


def _format_percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.1 or share == 0 else f"{share:.1%}"
