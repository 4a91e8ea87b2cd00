"""Compares the features of two windows: each one, those of each segment, and all together.

Called by ``paceline.drift.compare`` with the rows of like seasons.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from paceline.contract import FeatureDrift, JointDrift, SegmentDrift
from paceline.drift._columns import Column
from paceline.drift._dependence import Units
from paceline.drift._features import TestedFeature, run_tests
from paceline.drift._joint import compare_jointly
from paceline.drift._judgement import (
    describe_untested,
    describe_unused_settings,
    drifted_share,
    judge_features,
    sort_by_severity,
)
from paceline.drift._segments import Segment, find_segments, run_segment_tests, summarise_segment
from paceline.drift._settings import DriftSettings

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class FeatureComparison:
    """The features in both windows, most severe drift first, with their tests, segments and joint distribution."""

    features: tuple[FeatureDrift, ...] = ()
    measured: tuple[TestedFeature, ...] = ()
    segments: tuple[SegmentDrift, ...] = ()
    joint: JointDrift | None = None
    notes: tuple[str, ...] = ()


def compare_features(
    columns: Sequence[Column],
    reference: pd.DataFrame,
    current: pd.DataFrame,
    segments: str | None,
    settings: DriftSettings,
    units: tuple[Units, Units] | None,
) -> FeatureComparison:
    """Test the features of all rows and of each segment, and all features together if too few have drifted.

    The false discovery rate is that of all tests of single features together.
    """
    measured = [run_tests(column, reference, current, settings, units) for column in columns]
    divided: list[Segment] = []
    notes: list[str] = []
    if segments is not None:
        divided, notes = find_segments(reference, current, segments, settings.minimum_samples, units)
    parts = [measured, *(run_segment_tests(one, columns, reference, current, settings, units) for one in divided)]
    judged = iter(judge_features([*chain.from_iterable(parts)], settings))
    whole, *of_segments = [[next(judged) for _ in part] for part in parts]
    features = sort_by_severity(whole)
    joint = None
    has_drifted = any(one.verdict == "drift" for one in features)
    if not has_drifted or (drifted_share(features, settings) or 0.0) < settings.drift_share:
        tested = {one.name for one in features if one.verdict == "no drift" and one.kind in ("numeric", "categorical")}
        left = [column for column in columns if column.name in tested]
        joint = compare_jointly(left, reference, current, settings, units)
    return FeatureComparison(
        tuple(features),
        tuple(measured),
        tuple(map(summarise_segment, divided, of_segments)),
        joint,
        (*notes, *describe_untested(features), *describe_unused_settings(features, settings)),
    )
