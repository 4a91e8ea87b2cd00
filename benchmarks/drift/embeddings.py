"""Embeddings: false alarms, and detected changes of the mean and of the covariance of their vectors."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from paceline.drift import compare

# Dimensions, and rows of each window.
SIZES = ((64, 1000), (768, 5000))
# Arguments of ``draw_vectors`` for the current window.
CHANGES: dict[str, dict[str, Any]] = {
    "none": {},
    **{f"mean +{size:g} sd": {"shift": size} for size in (1.0, 2.0)},
    "rotated covariance": {"rotated": True},
}


def draw_vectors(
    rng: np.random.Generator, rows: int, dimensions: int, *, shift: float = 0.0, rotated: bool = False
) -> np.ndarray:
    """Return normally distributed vectors whose principal components have the standard deviations 1, 1/√2, 1/√3, …

    All windows have the same components. ``shift`` moves the mean in a fixed direction, in root mean squares of these
    standard deviations; ``rotated`` replaces the components by others with the same standard deviations.
    """
    first, second, direction = _draw_components(dimensions)
    scale = 1.0 / np.sqrt(1.0 + np.arange(dimensions))
    moved = shift * np.sqrt((scale**2).mean()) * direction
    drawn: np.ndarray = rng.normal(size=(rows, dimensions)) * scale @ (second if rotated else first) + moved
    return drawn


@cache
def _draw_components(dimensions: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return two sets of orthogonal components, and the direction of a shift."""
    rng = np.random.default_rng(dimensions)
    first, second = (np.linalg.qr(rng.normal(size=(dimensions, dimensions)))[0] for _ in range(2))
    direction = rng.normal(size=dimensions)
    return first, second, direction / np.linalg.norm(direction)


def to_frame(vectors: np.ndarray) -> pd.DataFrame:
    """Return a window whose only column is an embedding."""
    return pd.DataFrame({"embedding": pd.Series(list(vectors))})


def embedding_rates(windows: int) -> list[dict[str, Any]]:
    """Return the share of windows in which each change is reported as drift."""
    results = []
    for dimensions, rows in SIZES:
        rng = np.random.default_rng(9)
        rates = {}
        for name, change in CHANGES.items():
            pairs = (
                (draw_vectors(rng, rows, dimensions), draw_vectors(rng, rows, dimensions, **change))
                for _ in range(windows)
            )
            rates[name] = sum(compare(to_frame(a), to_frame(b)).drifted for a, b in pairs) / windows
        results.append({"dimensions": dimensions, "rows": rows, "drift": rates})
    return results


def print_embeddings(results: list[dict[str, Any]]) -> None:
    """Print the result of ``embedding_rates``."""
    for result in results:
        rates = "   ".join(f"{name} {share:6.1%}" for name, share in result["drift"].items())
        print(f"  {result['dimensions']:>3} dimensions, {result['rows']:,} rows: {rates}")
