"""Windows with ten features of different kinds, and changes of one feature, for all measurements of drift tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

MakeFrame = Callable[[np.random.Generator, int], pd.DataFrame]
Change = Callable[[pd.DataFrame, np.random.Generator], pd.DataFrame]
# The reference of a comparison has ten times as many rows as a window. NannyML takes its thresholds from ten chunks.
REFERENCE_WINDOWS = 10
# Number of windows that are compared with the same reference.
WINDOWS_PER_REFERENCE = 10
# Names of the files with the references, and with windows that have not changed.
REFERENCE, NO_CHANGE = "reference", "none"


def ten_features(rng: np.random.Generator, n: int) -> pd.DataFrame:
    """Return ten features: normal, skewed, mostly zero, integer, categorical, and one with missing values."""
    frame = pd.DataFrame({f"normal_{i}": rng.normal(size=n) for i in range(4)})
    frame["delay"] = rng.exponential(size=n)
    frame["rain"] = np.where(rng.random(n) < 0.9, 0.0, rng.exponential(size=n))
    frame["hour"] = rng.integers(0, 24, n)
    frame["carrier"] = rng.choice(list("ABCDEFGH"), n, p=[0.3, 0.2, 0.2, 0.1, 0.1, 0.05, 0.04, 0.01])
    frame["origin"] = rng.choice(["EWR", "JFK", "LGA"], n)
    frame["gust"] = np.where(rng.random(n) < 0.3, np.nan, rng.gamma(3, size=n))
    return frame


def _shift(size: float, frame: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    return frame.assign(normal_0=frame["normal_0"] + size)  # its standard deviation is 1


def _raise_share(points: float, frame: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    """Raise the share of carrier A from 0.3 by ``points``."""
    return frame.assign(carrier=frame["carrier"].where(rng.random(len(frame)) >= points / 0.7, "A"))


def _lose_values(points: float, frame: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    """Raise the share of missing values from 0.3 by ``points``."""
    return frame.assign(gust=frame["gust"].where(rng.random(len(frame)) >= points / 0.7))


# The changed column of each change, and the function that changes it.
CHANGES: dict[str, tuple[str, Change]] = {
    **{f"shift {size:g} sd": ("normal_0", partial(_shift, size)) for size in (0.1, 0.25, 0.5, 1.0)},
    "category +15 points": ("carrier", partial(_raise_share, 0.15)),
    "missing +10 points": ("gust", partial(_lose_values, 0.1)),
}


def write_windows(
    folder: Path, n: int, windows: int, make: MakeFrame, changes: Mapping[str, Change], seed: int = 3
) -> None:
    """Write the references, windows of ``n`` rows without drift, and the same windows after each change, as Parquet.

    The column ``window`` numbers the windows and the references.
    """
    rng = np.random.default_rng(seed)
    references = -(-windows // WINDOWS_PER_REFERENCE)
    reference = make(rng, references * REFERENCE_WINDOWS * n)
    reference["window"] = np.repeat(np.arange(references), REFERENCE_WINDOWS * n)
    current = make(rng, windows * n).assign(window=np.repeat(np.arange(windows), n))
    folder.mkdir(parents=True, exist_ok=True)
    reference.to_parquet(folder / f"{REFERENCE}.parquet")
    current.to_parquet(folder / f"{NO_CHANGE}.parquet")
    for name, change in changes.items():
        change(current, rng).to_parquet(folder / f"{name}.parquet")
