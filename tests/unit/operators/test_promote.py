"""``PromoteOperator`` with a real registry."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from airflow.sdk import Asset
from airflow.sdk.exceptions import AirflowFailException
from airflow.sdk.execution_time.context import OutletEventAccessors

from paceline.contract import PROMOTION_XCOM
from paceline.errors import InvalidInputError
from paceline.operators import PromoteOperator
from paceline.operators import promote as promote_module
from paceline.registry import FileRegistry

CHAMPION = Asset("flights-champion")
Task = Callable[..., Any]


@pytest.fixture
def registry(tmp_path: Path) -> FileRegistry:
    """Return a registry with three versions and no champion."""
    registry = FileRegistry(tmp_path / "registry")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights").write_text("1")
    for _ in range(3):
        registry.register(tmp_path / "model", name="flights")
    return registry


@pytest.fixture
def promote(registry: FileRegistry, monkeypatch: pytest.MonkeyPatch) -> Task:
    monkeypatch.setattr(
        promote_module, "_was_sent", lambda context, outlet: False
    )  # this method needs a supervisor process

    def run(evaluation: Any, **arguments: Any) -> Any:
        operator = PromoteOperator(
            task_id="promote", evaluation=evaluation, registry=str(registry.root), outlets=[CHAMPION], **arguments
        )
        events = OutletEventAccessors()
        ti = Mock(spec=["xcom_push"])
        result = operator.execute({"ti": ti, "outlet_events": events})  # type: ignore[typeddict-item]
        ti.xcom_push.assert_called_once_with(key=PROMOTION_XCOM, value=True)
        assert bool(operator.outlets) is result["promoted"], "only a promotion keeps the outlets and their events"
        if result["promoted"]:
            assert events[CHAMPION].extra["version"] == result["version"]
        return result

    return run


def _evaluation_result(version: int, challenger: float, champion_version: int | None = None) -> Any:
    """Return the result of an evaluation in which the champion's score is 0.7."""
    champion = None if champion_version is None else 0.7
    improvement = None if champion is None else challenger - champion
    return {
        "model": "flights", "version": version, "metric": "auc", "challenger": challenger, "champion": champion,
        "champion_version": champion_version, "better": improvement is None or improvement > 0,
        "improvement": improvement,
    }  # fmt: skip


@pytest.mark.parametrize("template", [False, True])
def test_first_version_is_promoted_from_a_dict_or_json_text(
    promote: Task, registry: FileRegistry, template: bool
) -> None:
    verdict = _evaluation_result(1, 0.7)
    result = promote(json.dumps(verdict) if template else verdict)
    assert result.pop("registry").endswith("/registry")
    assert result == {
        "promoted": True,
        "reason": "version 1 is the first, with auc 0.7",
        "model": "flights",
        "version": 1,
        "champion_version": 1,
        "previous_version": None,
    }
    assert registry.champion("flights") == registry.version("flights", 1)


def test_better_challenger_is_promoted_only_once_and_the_reason_is_reported(
    promote: Task, registry: FileRegistry
) -> None:
    promote(_evaluation_result(1, 0.7))
    verdict = _evaluation_result(2, 0.75, champion_version=1)
    results = [promote(verdict), promote(verdict)]
    for result in results:  # a retry returns the same result and promotes nothing
        assert (result["promoted"], result["champion_version"], result["previous_version"]) == (True, 2, 1)
    assert len(registry.history("flights")) == 2
    assert registry.history("flights")[-1].reason == results[0]["reason"]
    assert results[0]["reason"] == "version 2, auc 0.75, against 0.7 of champion version 1: better by 0.05"


@pytest.mark.parametrize(
    ("challenger", "min_improvement", "reason"),
    [
        (0.69, 0.0, "not better"),
        (0.70, 0.0, "not better"),
        (0.72, 0.05, "better by 0.02, less than the required 0.05"),
        (0.72, "0.05", "better by 0.02, less than the required 0.05"),
    ],
)
def test_insufficient_improvement_keeps_the_champion_and_the_reason_is_reported(
    promote: Task, registry: FileRegistry, challenger: float, min_improvement: Any, reason: str
) -> None:
    promote(_evaluation_result(1, 0.7))
    verdict = _evaluation_result(2, challenger, champion_version=1)
    result = promote(verdict, min_improvement=min_improvement)
    assert (result["promoted"], result["champion_version"]) == (False, 1)
    assert result["reason"].endswith(reason)
    assert [p.version for p in registry.history("flights")] == [1]


def test_champion_promoted_after_the_evaluation_is_kept(promote: Task, registry: FileRegistry) -> None:
    promote(_evaluation_result(1, 0.7))
    registry.promote("flights", 3, "by hand")
    result = promote(_evaluation_result(2, 0.75, champion_version=1))
    assert (result["promoted"], result["champion_version"]) == (False, 3)
    assert result["reason"] == "the champion is now version 3; version 2 was compared with 1"


def test_champion_promoted_during_the_decision_is_kept(
    promote: Task, registry: FileRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    promote(_evaluation_result(1, 0.7))
    read = FileRegistry.champion

    def read_before_another_promotion(self: FileRegistry, name: str) -> Any:
        champion = read(self, name)
        registry.promote(name, 3, "by another task")
        return champion

    monkeypatch.setattr(FileRegistry, "champion", read_before_another_promotion)
    result = promote(_evaluation_result(2, 0.75, champion_version=1))
    assert (result["promoted"], result["champion_version"]) == (False, 3)
    assert [one.version for one in registry.history("flights")] == [1, 3]


@pytest.mark.parametrize(
    ("evaluation", "message"),
    [
        ("None", "evaluation: got 'None', expected the result of EvaluateOperator"),
        (None, "evaluation: got None"),
        ({"model": "flights"}, r"missing: \['challenger', 'champion', 'champion_version'"),
        ({**_evaluation_result(1, 0.7), "model": "../x"}, r"evaluation\.model: got '\.\./x'"),
        ({**_evaluation_result(1, 0.7), "challenger": float("nan")}, r"evaluation\.challenger: got nan"),
        (_evaluation_result(9, 0.7), r"version: got 9, expected a version of 'flights' \(1, 2, 3\)"),
    ],
)
def test_invalid_evaluation_is_rejected_by_field(
    promote: Task, registry: FileRegistry, evaluation: Any, message: str
) -> None:
    with pytest.raises(AirflowFailException, match=message):
        promote(evaluation)
    assert registry.history("flights") == []


@pytest.mark.parametrize("value", [-0.1, "-1", "much", float("nan")])
def test_invalid_min_improvement_is_rejected_when_the_dag_is_parsed(value: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"min_improvement: got .*expected at least 0"):
        PromoteOperator(task_id="promote", evaluation={}, registry="/tmp", min_improvement=value)
