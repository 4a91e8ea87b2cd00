"""Tables of labels, predicted classes and their scores, for the report. Called by ``paceline.drift._page``."""

from __future__ import annotations

from html import escape

from paceline.drift._confusion import Confusion

TABLE_STYLE = """
.tables { display: flex; flex-wrap: wrap; gap: 8px 40px; margin-top: 12px; font-size: .9rem;
  overflow-x: auto; }
.tables caption { text-align: left; color: var(--soft); padding-bottom: 4px; }
.tables th { font-weight: normal; text-align: left; padding: 3px 10px 3px 0; overflow-wrap: anywhere; }
.tables .num { text-align: right; padding: 3px 8px; }
"""


def confusion_tables(reference: Confusion | None, current: Confusion | None) -> str:
    """Return both windows' counts, with darker cells for larger shares of a label's rows, and the scores of each class.

    >>> counts = Confusion(("no", "yes"), ((8, 2), (1, 9)), (0.9, 0.8), (0.8, 0.9), (0.84, 0.86), 0.85, 0.85, 0.85)
    >>> tables = confusion_tables(None, counts)
    >>> tables.count("<table>"), "macro mean" in tables, "n/a → 0.850" in tables
    (2, True, True)
    """
    windows = (("reference", reference), ("current", current))
    known = [confusion for _, confusion in windows if confusion is not None]
    if not known:
        return ""
    counts = "".join(_count_table(name, confusion) for name, confusion in windows if confusion is not None)
    return f'<div class="tables">{_score_table(known[0].classes, reference, current)}{counts}</div>'


def _count_table(window: str, confusion: Confusion) -> str:
    header = "".join(f'<th scope="col" class="num">{escape(name)}</th>' for name in confusion.classes)
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th>{"".join(_count_cell(count, sum(counts)) for count in counts)}</tr>'
        for name, counts in zip(confusion.classes, confusion.counts, strict=True)
    )
    return (
        f"<table><caption>Rows of the {window} window by label (down) and prediction (across)</caption>"
        f"<tr><td></td>{header}</tr>{rows}</table>"
    )


def _count_cell(count: int, rows: int) -> str:
    shade = round(40 * count / rows) if rows else 0
    return (
        f'<td class="num" style="background: color-mix(in srgb, var(--current) {shade}%, transparent)">{count:,}</td>'
    )


def _score_table(classes: tuple[str, ...], reference: Confusion | None, current: Confusion | None) -> str:
    measures = ("precision", "recall", "f1")
    header = "".join(f'<th scope="col" class="num">{name}</th>' for name in ("precision", "recall", "F1"))
    rows = []
    for number, name in enumerate(classes):
        scores = [
            [getattr(one, measure)[number] if one else None for one in (reference, current)] for measure in measures
        ]
        if any(score is not None for pair in scores for score in pair):
            rows.append((name, scores))
    macro = [
        [getattr(one, f"macro_{measure}") if one else None for one in (reference, current)] for measure in measures
    ]
    body = "".join(
        f'<tr><th scope="row">{escape(name)}</th>{"".join(_score_cell(*pair) for pair in scores)}</tr>'
        for name, scores in (*rows, ("macro mean", macro))
    )
    return (
        "<table><caption>Scores of each class, reference → current window</caption>"
        f"<tr><td></td>{header}</tr>{body}</table>"
    )


def _score_cell(before: float | None, after: float | None) -> str:
    shown = ["n/a" if score is None else f"{score:.3f}" for score in (before, after)]
    return f'<td class="num">{shown[0]} → {shown[1]}</td>'
