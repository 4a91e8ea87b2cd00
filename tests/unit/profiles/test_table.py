"""A table approximates a learned function and is faster to evaluate."""

from types import SimpleNamespace

import numpy as np
import pytest

from paceline.profiles import FUNCTIONS, Learned
from paceline.profiles._table import Table

COMPUTE, NEW_CPU = FUNCTIONS[0], FUNCTIONS[2]


def learned_from_formula(function, formula, low, high):
    """Return a learned function that evaluates a formula instead of fitted regressions."""
    learned = Learned(function, (), np.array([low, high]), np.ones(2), 0.0, 0.0)
    vars(learned)["model"] = SimpleNamespace(predict=lambda rows: formula(*rows.T))
    return learned


def test_table_is_exact_at_its_points_and_interpolates_between_them():
    # The table interpolates the logarithm of seconds, because durations are learned as logarithms.
    function = learned_from_formula(
        COMPUTE, lambda cpu, gpu, batch: cpu + np.log1p(1 / batch), (0.0, 0.0, 1.0), (0.8, 0.0, 64.0)
    )
    table = Table(function, {})
    states = np.random.default_rng(0).uniform(0.0, 0.8, 50)
    for batch in (1.0, 2.0, 64.0):
        rows = np.column_stack([states, np.zeros(50), np.full(50, batch)])
        assert table(rows) == pytest.approx(function(rows), rel=1e-9)
    between, ends = np.array([[0.4, 0.0, 1.5]]), np.array([[0.4, 0.0, 1.0], [0.4, 0.0, 2.0]])
    assert table(between)[0] == pytest.approx(np.sqrt(np.prod(function(ends))))


def test_table_clips_features_to_the_measured_range_and_ignores_fixed_axes():
    function = learned_from_formula(
        NEW_CPU, lambda cpu, gpu, memory, batch: 0.2 + 0.5 * cpu + 0.1 * memory, (0.1, 0, 0.2, 8), (0.9, 0, 0.6, 8)
    )
    rows = np.array([[0.0, 0.0, 0.3, 8.0], [0.5, 0.7, 0.1, 1.0], [1.0, 0.0, 0.5, 99.0]])
    assert Table(function, {"memory": 0.5})(rows) == pytest.approx([0.2 + 0.5 * cpu + 0.05 for cpu in (0.1, 0.5, 0.9)])
    constant = learned_from_formula(NEW_CPU, lambda cpu, *_: cpu, (0.3, 0, 0.4, 8), (0.3, 0, 0.4, 8))
    assert Table(constant, {})(rows) == pytest.approx([0.3] * 3)
