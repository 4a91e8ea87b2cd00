"""Tests whether all features together have drifted although no single one has, as when a correlation has reversed.

Called by ``paceline.drift.compare``. The classifier comes from scikit-learn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from paceline.drift._columns import Column, shorten, to_label
from paceline.drift._report import JointDrift
from paceline.drift._settings import DriftSettings

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

# Rows of each window. More rows would take longer and hardly separate the windows better.
MAX_ROWS = 5_000
# Approximate total number of rows from which the classifiers of all parts learn. Large windows need fewer parts: half
# of their rows suffice.
LEARNED_ROWS = 25_000
# Each row counts once if the windows' shares of repeated rows differ by at least ``_REPEATED_SHARE``, and at least
# ``_FEWEST_DISTINCT`` rows are left in each window.
_REPEATED_SHARE, _FEWEST_DISTINCT = 0.05, 100
# Minimum number of rows, in multiples of ``minimum_samples``. With fewer, a relevant difference is lost in the noise.
FEWEST = 5


def compare_jointly(
    columns: Sequence[Column], reference: pd.DataFrame, current: pd.DataFrame, settings: DriftSettings
) -> JointDrift | None:
    """Test whether a classifier can distinguish the rows of the windows; return ``None`` with too few rows or columns.

    The classifier scores rows from which it has not learned (see ``distinguish``). The Mann-Whitney test compares the
    scores for the two windows: if the windows have the same distribution, no classifier scores them differently.

    Notes
    -----
    D. Lopez-Paz and M. Oquab, "Revisiting classifier two-sample tests", ICLR 2017.

    Examples
    --------
    >>> import numpy as np, pandas as pd
    >>> rng = np.random.default_rng(0)
    >>> def correlated(rho):
    ...     return pd.DataFrame(rng.multivariate_normal([0, 0], [[1, rho], [rho, 1]], 1000), columns=["temp", "humid"])
    >>> columns = [Column("temp", "numeric"), Column("humid", "numeric")]
    >>> result = compare_jointly(columns, correlated(0.9), correlated(-0.9), DriftSettings())
    >>> result.verdict, result.auc > 0.9, "the correlation of temp and humid reversed" in result.reason
    ('drift', True, True)
    """
    import numpy as np

    if len(columns) < 2 or min(len(reference), len(current)) < FEWEST * settings.minimum_samples:
        return None
    rng = np.random.default_rng(0)
    chosen = [frame.iloc[np.sort(rng.permutation(len(frame))[:MAX_ROWS])] for frame in (reference, current)]
    encoded = np.concatenate([encode_column(column, *chosen) for column in columns], axis=1)
    labels = np.repeat([0, 1], [len(frame) for frame in chosen])
    auc, p_value = distinguish(encoded, labels)
    drifted = p_value <= settings.significance and auc >= settings.joint_threshold
    return JointDrift(
        verdict="drift" if drifted else "no drift",
        reason=_describe(columns, encoded, labels, auc, drifted),
        auc=auc,
        p_value=p_value,
        rows=len(labels),
    )


def distinguish(rows: NDArray[np.float64], labels: NDArray[np.int64]) -> tuple[float, float]:
    """Return a classifier's AUC on rows new to it, and the p-value of the hypothesis that the windows are equal.

    ``labels`` are 0 and 1 for the rows of the two windows. Cross-fitting gives every row a score: the rows are divided
    into two to five parts, and a classifier that learns from the other parts scores each part. The fewer the rows, the
    more parts, because a classifier that learns from few rows understates how different the windows are.

    The variance of the Mann-Whitney statistic is corrected, because the classifiers learn from overlapping rows. If one
    window repeats more of its rows than the other, each row counts once, because a classifier recognises repeated rows.

    Notes
    -----
    C. Nadeau and Y. Bengio, "Inference for the generalization error", Machine Learning 52, 2003, section 3.
    """
    from scipy.stats import norm
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.metrics import roc_auc_score
    from sklearn.model_selection import StratifiedKFold, cross_val_predict
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    rows, labels = _without_repeated_rows(rows, labels)
    total, current = len(labels), int(labels.sum())
    parts = min(5, max(2, LEARNED_ROWS // total))
    folds = StratifiedKFold(parts, shuffle=True, random_state=0)
    # Large leaves, because relevant differences between the windows can be small compared with the noise.
    classifier = HistGradientBoostingClassifier(max_iter=30, learning_rate=0.2, min_samples_leaf=50, random_state=0)
    with threadpool_limits(1, user_api="openmp"):  # several threads would take longer for so few rows
        scores = cross_val_predict(classifier, rows, labels, cv=folds, method="decision_function")
    auc = float(roc_auc_score(labels, scores))
    variance = (total + 1) / (12 * current * (total - current)) * (1 + parts / (parts - 1))
    return auc, float(norm.sf((auc - 0.5) / variance**0.5))


def _without_repeated_rows(
    rows: NDArray[np.float64], labels: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return distinct rows of equally large samples of the windows, if the shares of repeated rows differ.

    Rows with few possible values repeat by chance, so a small number of distinct rows is no reason to drop the others.
    """
    import numpy as np

    rng = np.random.default_rng(0)
    size = int(np.bincount(labels).min())
    samples = [rng.permutation(np.flatnonzero(labels == label))[:size] for label in (0, 1)]
    distinct = [sample[np.unique(rows[sample], axis=0, return_index=True)[1]] for sample in samples]
    fewer, more = sorted(map(len, distinct))
    if more - fewer < _REPEATED_SHARE * size or fewer < _FEWEST_DISTINCT:
        return rows, labels
    kept = np.concatenate(distinct)
    return rows[kept], labels[kept]


def encode_column(column: Column, *frames: pd.DataFrame) -> NDArray[np.float64]:
    """Return a column's values in all frames as numbers; labels become their ranks by frequency."""
    import numpy as np
    import pandas as pd

    values = pd.concat([frame[column.name] for frame in frames], ignore_index=True)
    if column.kind == "numeric":
        return values.to_numpy(dtype=float, na_value=np.nan)[:, None]
    labels = values.map(to_label, na_action="ignore").astype(object)
    ranks: dict[Any, int] = {label: rank for rank, label in enumerate(labels.value_counts().index)}
    return labels.map(ranks, na_action="ignore").to_numpy(dtype=float, na_value=np.nan)[:, None]


def _describe(
    columns: Sequence[Column], encoded: NDArray[np.float64], labels: NDArray[np.int64], auc: float, drifted: bool
) -> str:
    if auc < 0.5:  # far below 0.5 if rows of one window are repeated in the other
        return "A classifier distinguishes the windows no better than chance."
    if not drifted:
        return f"A classifier can hardly distinguish the windows (AUC {auc:.2f})."
    text = f"No single feature has drifted, but a classifier distinguishes the windows (AUC {auc:.2f})"
    change = _largest_correlation_change(columns, encoded, labels)
    return f"{text}: {change}." if change else f"{text}."


def _largest_correlation_change(
    columns: Sequence[Column], encoded: NDArray[np.float64], labels: NDArray[np.int64]
) -> str:
    """Describe the pair of numeric features whose rank correlation differs most between the windows."""
    import numpy as np
    import pandas as pd

    numeric = [index for index, column in enumerate(columns) if column.kind == "numeric"]
    if len(numeric) < 2:
        return ""
    frame = pd.DataFrame(encoded[:, numeric])
    before, after = (frame[labels == label].corr(method="spearman").to_numpy() for label in (0, 1))
    gaps = np.nan_to_num(np.abs(np.triu(after - before, k=1)))
    first, second = np.unravel_index(int(gaps.argmax()), gaps.shape)
    if gaps[first, second] < 0.1:
        return ""
    names = " and ".join(shorten(columns[numeric[index]].name) for index in (first, second))
    old, new = before[first, second], after[first, second]
    return f"the correlation of {names} {'reversed' if old * new < 0 else 'changed'} from {old:.2f} to {new:.2f}"
