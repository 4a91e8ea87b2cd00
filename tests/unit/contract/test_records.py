"""Readers of a job's live state tolerate any JSON. Writers store only valid values."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.samples import a_sample

from paceline.contract import Ceiling, PaceSample, Reason, RunEvent, StoredHistory
from paceline.train.progress import parse_line

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
def test_sample_without_a_required_field_is_none(field: str) -> None:
    stored = a_sample().to_json()
    del stored[field]
    assert PaceSample.read(stored) is None


def test_unknown_fields_of_a_newer_version_are_ignored() -> None:
    newer = {
        **a_sample().to_json(),
        "version": 9,
        "mood": "good",
        "remaining": {"work": 3},
        "metrics": {"auc": 0.7, "best": True},
    }
    sample = PaceSample.read(newer)
    assert sample is not None
    assert (sample.version, sample.remaining, sample.metrics) == (9, None, {"auc": 0.7})


def test_unusual_values_of_jobs_and_users_can_be_stored() -> None:
    """An unusual metric name, reason or ceiling does not end the job."""
    odd = Ceiling.read({"devices": 1e12, "grant": 1e9, "reason": "\ud800"})
    report = parse_line('@paceline {"done": 1, "total": 2, "metrics": {"\\udfff": 0.5}}')
    sample = a_sample(ceiling=odd.devices, grant=odd.grant, metrics=report.metrics)
    assert sample.to_json()["metrics"] == {"?": 0.5}
    why = {"why": odd.reason.text, "reason": odd.reason.kind}
    event = RunEvent(t_s=1.0, kind="ceiling", value="\ud800" * 100, by="\ud800", devices=odd.devices, **why)
    history = StoredHistory(samples=[[0.5] * 7], events=[event])
    assert StoredHistory.read(json.loads(json.dumps(history.to_json()))) == history


@pytest.mark.parametrize("wrong", [{"forecast_s": float("inf")}, {"progress_pct": float("nan")}, {"state": "asleep"}])
def test_invalid_sample_cannot_be_constructed(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        a_sample(**wrong)


@pytest.mark.parametrize(
    "invalid", [{"columns": ["t_s"]}, {"columns": 5}, {"samples": [None]}, {"samples": [[1.0]]}, "x"]
)
def test_invalid_history_is_none(invalid: object) -> None:
    assert StoredHistory.read(invalid) is None


@given(JSON)
def test_any_json_is_read_as_a_reason_or_as_none(stored: object) -> None:
    reason = Ceiling.read({"devices": 1.0, "reason": stored}).reason
    if reason is not None:
        assert reason.kind
        assert reason.text
        assert Reason.read(reason.to_json()) == reason


def test_stored_sentence_without_a_constant_is_read() -> None:
    old = Ceiling.read({"devices": 0.5, "grant": 3, "max_devices": 0.5, "reason": "smallest allocation"})
    assert old.reason == Reason("other", "smallest allocation")
    assert Ceiling.read({"devices": 0.5, "grant": 3, "max_devices": 0.5, "reason": ""}).reason is None
