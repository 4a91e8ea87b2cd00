"""Tests whether the vectors of an embedding have drifted: a classifier tries to distinguish the windows.

Called by ``paceline.drift._features``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.drift._dependence import Units
from paceline.drift._joint import FEWEST, MAX_ROWS, choose_rows, distinguish, find_copies, join_units
from paceline.drift._settings import DriftSettings
from paceline.drift._statistics import TestResult

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

# Limit for the vectors of one window, at eight bytes for each number.
MAX_BYTES = 64 * 2**20
# Principal components of the vectors that the classifier sees.
COMPONENTS = 64


def compare_vectors(
    reference: pd.Series[Any],
    current: pd.Series[Any],
    settings: DriftSettings,
    units: tuple[Units, Units] | None = None,
) -> TestResult | None:
    """Test whether a classifier can distinguish the vectors of the windows; return ``None`` if they are too long.

    ``units`` are those of the vectors of both windows, if vectors depend on each other.

    At most 5,000 vectors and 64 MiB of each window are compared.

    The statistic is the classifier's area under the ROC curve (AUC) on rows from which it has not learned, and the
    effect is 2 AUC - 1. The principal components do not depend on which window a vector comes from, so they do not bias
    the test.

    >>> import numpy as np, pandas as pd
    >>> rng = np.random.default_rng(0)
    >>> reference, current = (pd.Series(list(rng.normal(mean, 1, (600, 16)))) for mean in (0, 0.5))
    >>> compare_vectors(reference, current, DriftSettings()).statistic > 0.7
    True
    """
    import numpy as np
    from sklearn.decomposition import PCA

    most = min(MAX_ROWS, MAX_BYTES // (8 * len(reference.iloc[0])))
    if most < FEWEST * settings.minimum_samples:
        return None
    taken = choose_rows((len(reference), len(current)), most)
    chosen = [series.iloc[rows] for series, rows in zip((reference, current), taken, strict=True)]
    vectors: NDArray[np.float64] = np.concatenate([np.stack(series.to_list()).astype(float) for series in chosen])
    labels = np.repeat([0, 1], [len(series) for series in chosen])
    with np.errstate(invalid="ignore"):  # equal vectors have no variance, of which PCA computes shares
        components = PCA(min(COMPONENTS, *vectors.shape), random_state=0).fit_transform(vectors)
    auc, p_value = distinguish(components, labels, join_units(units, taken) or find_copies(vectors, labels))
    return TestResult(auc, p_value, max(0.0, 2.0 * auc - 1.0))
