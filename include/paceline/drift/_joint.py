"""Tests whether all features together have drifted although no single one has, as when a correlation has reversed.

Called by ``paceline.drift.compare``. The classifier comes from scikit-learn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from paceline.contract import JointDrift
from paceline.drift._columns import Column, shorten_name, to_label
from paceline.drift._dependence import Units, mean_variance
from paceline.drift._design import combine_designs
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
# Equal rows may be copies if at least ``_REPEATED_SHARE`` of the rows repeat others, and at least ``_FEWEST_DISTINCT``
# are distinct.
_REPEATED_SHARE, _FEWEST_DISTINCT = 0.02, 200
# Blocks of neighbouring points in time in each window. A block is in one part. The rows at its borders resemble rows in
# other parts, so that with many blocks a classifier recognises the windows although they have not drifted.
_BLOCKS = 5
# Minimum number of rows, in multiples of ``minimum_samples``. With fewer, a relevant difference is lost in the noise.
FEWEST = 5


def compare_jointly(
    columns: Sequence[Column],
    reference: pd.DataFrame,
    current: pd.DataFrame,
    settings: DriftSettings,
    units: tuple[Units, Units] | None = None,
) -> JointDrift | None:
    """Test whether a classifier can distinguish the rows of the windows; return ``None`` with too few rows or columns.

    ``units`` are those of the rows of both windows, if rows depend on each other.

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
    taken = choose_rows((len(reference), len(current)), MAX_ROWS)
    chosen = [frame.iloc[rows] for frame, rows in zip((reference, current), taken, strict=True)]
    encoded = np.concatenate([encode_column(column, *chosen) for column in columns], axis=1)
    labels = np.repeat([0, 1], [len(frame) for frame in chosen])
    auc, p_value = distinguish(encoded, labels, join_units(units, taken) or find_copies(encoded, labels))
    drifted = p_value <= settings.significance and auc >= settings.joint_threshold
    return JointDrift(
        verdict="drift" if drifted else "no drift",
        reason=_describe(columns, encoded, labels, auc, drifted),
        auc=auc,
        p_value=p_value,
        rows=len(labels),
    )


def choose_rows(sizes: Sequence[int], most: int) -> list[NDArray[np.int64]]:
    """Return at most ``most`` random rows of each window, in order."""
    import numpy as np

    rng = np.random.default_rng(0)
    return [np.sort(rng.permutation(size)[:most]) for size in sizes]


def join_units(units: tuple[Units, Units] | None, taken: Sequence[NDArray[np.int64]]) -> Units | None:
    """Return the units of the rows taken from both windows, one window after the other."""
    import numpy as np

    if units is None:
        return None
    codes = [one.codes[rows] for one, rows in zip(units, taken, strict=True)]
    return Units(np.concatenate(codes), units[0].in_time_order)


def distinguish(
    rows: Any, labels: NDArray[np.int64], units: Units | None = None, classifier: Any = None
) -> tuple[float, float]:
    """Return a classifier's AUC on rows new to it, and the p-value of the hypothesis that the windows are equal.

    ``labels`` are 0 and 1 for the rows of the two windows. Cross-fitting gives every row a score: the rows are divided
    into two to five parts, and a classifier that learns from the other parts scores each part. The fewer the rows, the
    more parts, because a classifier that learns from few rows understates how different the windows are. The default
    ``classifier`` is gradient-boosted trees.

    The variance of the Mann-Whitney statistic is corrected, because the classifiers learn from overlapping rows. Rows
    of one unit are in the same part, because a classifier recognises rows that resemble those from which it has
    learned, and the variance is that of the units.

    Notes
    -----
    C. Nadeau and Y. Bengio, "Inference for the generalization error", Machine Learning 52, 2003, section 3.
    E. R. DeLong et al., "Comparing the areas under two or more correlated receiver operating characteristic curves",
    Biometrics 44, 1988 (placements).
    """
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.metrics import roc_auc_score
    from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold, cross_val_predict
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    parts = min(5, max(2, LEARNED_ROWS // len(labels)))
    kind = StratifiedKFold if units is None else StratifiedGroupKFold
    folds = kind(parts, shuffle=True, random_state=0)
    groups = None if units is None else _blocks(units, labels)
    # Large leaves, because relevant differences between the windows can be small compared with the noise.
    classifier = classifier or HistGradientBoostingClassifier(
        max_iter=30, learning_rate=0.2, min_samples_leaf=50, random_state=0
    )
    method = "decision_function" if hasattr(classifier, "decision_function") else "predict_log_proba"
    with threadpool_limits(1, user_api="openmp"):  # several threads would take longer for so few rows
        scores = cross_val_predict(classifier, rows, labels, groups=groups, cv=folds, method=method)
    scores = scores[:, 1] - scores[:, 0] if scores.ndim == 2 else scores
    auc = float(roc_auc_score(labels, scores))
    return auc, _rank_p_value(scores, labels, units, auc, 1 + parts / (parts - 1))


def _rank_p_value(
    scores: NDArray[np.float64], labels: NDArray[np.int64], units: Units | None, auc: float, overlap: float
) -> float:
    """Return the p-value of the Mann-Whitney test; ``overlap`` is the factor of the variance for overlapping parts."""
    import numpy as np
    from scipy.stats import norm, rankdata

    rows = np.bincount(labels)
    if units is None:
        return float(norm.sf((auc - 0.5) / ((1 / rows[0] + 1 / rows[1]) / 12 * overlap) ** 0.5))
    ranks = rankdata(scores)
    # The placement of a score is the share of the other window's scores below it.
    placements = [
        (ranks[chosen] - rankdata(scores[chosen])) / rows[1 - label]
        for label, chosen in ((label, labels == label) for label in (0, 1))
    ]
    found = [mean_variance(one[:, None], units.take(labels == label)) for label, one in enumerate(placements)]
    design = combine_designs(found, rows.tolist())
    variance = (design.reference / rows[0] + design.current / rows[1]) / 12 * overlap
    statistic = (auc - 0.5) / variance**0.5
    # A one-sided p-value; ``correct`` expects a two-sided one.
    half = design.correct(2 * float(norm.sf(abs(statistic)))) / 2
    return half if statistic > 0 else 1 - half


def _blocks(units: Units, labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the units, or blocks of neighbouring units if these may depend on each other."""
    import numpy as np

    if not units.in_time_order:
        return units.codes
    blocks = np.zeros(len(labels), dtype=np.int64)
    for label in (0, 1):
        _, codes = np.unique(units.codes[labels == label], return_inverse=True)
        blocks[labels == label] = codes * _BLOCKS // (codes.max() + 1) + label * _BLOCKS
    return blocks


def find_copies(rows: NDArray[np.float64], labels: NDArray[np.int64]) -> Units | None:
    """Return the distinct rows as units if the windows seem to contain copies of rows, otherwise None.

    Rows with few possible values repeat by chance: as often between the windows as within one. Copies repeat more often
    within one.
    """
    import numpy as np
    import pandas as pd

    # Unlike ``hash``, these digests are the same in every process, and so are the parts of the cross-fitting.
    digests = pd.util.hash_pandas_object(pd.DataFrame(rows), index=False).to_numpy()
    codes = np.unique(digests, return_inverse=True)[1]
    counts = np.stack([np.bincount(codes[labels == label], minlength=codes.max() + 1) for label in (0, 1)])
    sizes = counts.sum(axis=1)
    within = max((counts * (counts - 1)).sum(axis=1) / (sizes * (sizes - 1)))
    between = (counts[0] * counts[1]).sum() / sizes.prod()
    repeated = 1 - counts.shape[1] / len(labels)
    if repeated < _REPEATED_SHARE or counts.shape[1] < _FEWEST_DISTINCT or within < 2 * between:
        return None
    return Units(codes)


def encode_column(column: Column, *frames: pd.DataFrame) -> NDArray[np.float64]:
    """Return a column's values in all frames as numbers; labels become their ranks by frequency."""
    import numpy as np
    import pandas as pd

    values = pd.concat([frame[column.name] for frame in frames], ignore_index=True)
    if column.kind == "numeric":
        return values.to_numpy(dtype=float, na_value=np.nan)[:, None]
    labels = values.map(to_label, na_action="ignore").astype(object)
    # Labels with equal counts are in alphabetical order: the order of their first rows would tell the windows apart.
    counts = labels.value_counts().sort_index().sort_values(ascending=False, kind="stable")
    ranks: dict[Any, int] = {label: rank for rank, label in enumerate(counts.index)}
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
    names = " and ".join(shorten_name(columns[numeric[index]].name) for index in (first, second))
    old, new = before[first, second], after[first, second]
    return f"the correlation of {names} {'reversed' if old * new < 0 else 'changed'} from {old:.2f} to {new:.2f}"
