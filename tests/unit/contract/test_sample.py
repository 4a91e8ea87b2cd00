"""What any user may have written in place of a sample is not taken for one, and never ends a reader."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.samples import a_sample

from paceline.contract import PaceSample

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(sorted(PaceSample.model_fields)), JSON))
def test_any_json_is_read_as_a_sample_or_as_none(changed: dict[str, Any]) -> None:
    sample = PaceSample.read({**a_sample().to_json(), **changed})
    if sample is not None:
        written = json.dumps(sample.to_json(), allow_nan=False)
        assert PaceSample.read(json.loads(written)) == sample
        assert sample.origin.tzinfo is not None


@pytest.mark.parametrize(
    "field", ["state", "t_s", "updated_at", "progress_pct", "devices", "min_devices", "max_devices", "quantum"]
)
def test_a_sample_without_its_essentials_is_none(field: str) -> None:
    stored = a_sample().to_json()
    del stored[field]
    assert PaceSample.read(stored) is None


def test_fields_of_a_newer_version_are_ignored() -> None:
    newer = {**a_sample().to_json(), "version": 9, "mood": "good", "outlook": {"work": 3}}
    sample = PaceSample.read(newer)
    assert sample is not None
    assert (sample.version, sample.outlook, sample.progress_pct) == (9, None, 50.0)


@pytest.mark.parametrize("wrong", [{"forecast_s": float("inf")}, {"progress_pct": float("nan")}, {"state": "asleep"}])
def test_a_writer_cannot_make_a_sample_that_is_none(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        a_sample(**wrong)
