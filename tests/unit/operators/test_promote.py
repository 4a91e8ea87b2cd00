"""``PromoteOperator`` with a real registry: what depends on the registry, on each kind; the rest in a folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from airflow.sdk import DAG, Asset, BaseOperator
from airflow.sdk.exceptions import AirflowFailException
from airflow.sdk.execution_time.context import OutletEventAccessors
from tests.unit.registry.stores import Store

from paceline.contract import PROMOTION_XCOM
from paceline.errors import InvalidInputError
from paceline.operators import ApproveOperator, DeadlineTrainingOperator, EvaluateOperator, PromoteOperator
from paceline.operators import promote as promote_module
from paceline.registry import Registry

CHAMPION = Asset("flights-champion")
Task = Callable[..., Any]
in_a_folder = pytest.mark.parametrize("store", ["local"], indirect=True)


@pytest.fixture
def registry(store: Store, tmp_path: Path) -> Registry:
    """Return a registry with three versions and no champion."""
    store.forget("flights")
    registry = store.open()
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights").write_text("1")
    for _ in range(3):
        registry.register(tmp_path / "model", name="flights")
    return registry


@pytest.fixture
def promote(store: Store, registry: Registry, monkeypatch: pytest.MonkeyPatch) -> Task:
    monkeypatch.setattr(
        promote_module, "_was_sent", lambda context, outlet: False
    )  # this method needs a supervisor process

    def run(evaluation: Any, **arguments: Any) -> Any:
        operator = PromoteOperator(
            task_id="promote", evaluation=evaluation, registry=store.location, outlets=[CHAMPION], **arguments
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


def _evaluation_result(
    version: int, challenger: float, champion_version: int | None = None, improvements: Any = None
) -> Any:
    """Return the result of an evaluation in which the champion's score is 0.7."""
    champion = None if champion_version is None else 0.7
    improvement = None if champion is None else challenger - champion
    return {
        "model": "flights", "version": version, "metric": "auc", "challenger": challenger, "champion": champion,
        "champion_version": champion_version, "better": improvement is None or improvement > 0,
        "improvement": improvement, "improvements": improvements,
    }  # fmt: skip


@pytest.mark.parametrize("render", [dict, json.dumps, lambda result: {**result, "version": "1", "challenger": "0.7"}])
def test_first_version_is_promoted_from_a_dict_json_text_or_rendered_numbers(
    promote: Task, store: Store, registry: Registry, render: Callable[[dict[str, Any]], Any]
) -> None:
    result = promote(render(_evaluation_result(1, 0.7)))
    assert result.pop("registry") == store.location
    assert result == {
        "promoted": True,
        "verdict": "first",
        "reason": "version 1 is the first, with auc 0.7",
        "model": "flights",
        "version": 1,
        "champion_version": 1,
        "previous_version": None,
    }
    assert registry.champion("flights") == registry.version("flights", 1)


def test_better_challenger_is_promoted_only_once_and_the_reason_is_reported(promote: Task, registry: Registry) -> None:
    promote(_evaluation_result(1, 0.7))
    verdict = _evaluation_result(2, 0.75, champion_version=1)
    results = [promote(verdict), promote(verdict)]
    for result in results:  # a retry returns the same result and promotes nothing
        assert (result["promoted"], result["champion_version"], result["previous_version"]) == (True, 2, 1)
    assert [result["verdict"] for result in results] == ["better", "already champion"]
    assert len(registry.history("flights")) == 2
    assert registry.history("flights")[-1].reason == results[0]["reason"]
    assert results[0]["reason"] == "version 2, auc 0.75, against 0.7 for champion version 1: better by 0.05"


def test_version_with_other_files_than_the_scored_ones_is_not_promoted(
    promote: Task, registry: Registry, tmp_path: Path
) -> None:
    scored = {**_evaluation_result(2, 0.75), "registry": "/elsewhere", "digest": registry.version("flights", 1).digest}
    assert promote(scored)["promoted"]
    (tmp_path / "model" / "weights").write_text("2")
    other = registry.register(tmp_path / "model", name="flights")
    message = (
        "evaluation: got 'version 4 in /elsewhere', expected the version that was scored; version 4 in .* has other"
    )
    with pytest.raises(AirflowFailException, match=message):
        promote({**scored, "version": other.version, "champion_version": 2, "champion": 0.7, "improvement": 0.05})
    assert [promotion.version for promotion in registry.history("flights")] == [2]


@pytest.mark.parametrize(
    ("challenger", "champion", "allowed", "verdict"),
    [
        ("2026-01-05T00:00:00+00:00", "2026-01-10T00:00:00+00:00", False, "older data"),
        ("2026-01-05T00:00:00+00:00", "2026-01-10T00:00:00+00:00", True, "better"),
        ("2026-01-09T23:30:00-01:00", "2026-01-10T00:00:00+00:00", False, "better"),
        ("2026-01-10T00:00:00+00:00", "2026-01-10T00:00:00+00:00", False, "better"),
        (None, "2026-01-10T00:00:00+00:00", False, "better"),
    ],
)
def test_older_data_replaces_newer_data_only_if_it_is_allowed(
    promote: Task,
    registry: Registry,
    tmp_path: Path,
    challenger: str | None,
    champion: str,
    allowed: bool,
    verdict: str,
) -> None:
    for until in (champion, challenger):
        registry.register(tmp_path / "model", name="flights", lineage={"data_until": until})
    registry.promote("flights", 4, "newest")
    result = promote(_evaluation_result(5, 0.75, champion_version=4), allow_older=allowed)
    assert (result["verdict"], result["champion_version"]) == (verdict, 4 if verdict == "older data" else 5)
    if verdict == "older data":
        assert "version 5 is from a run for data until 2026-01-05T00:00:00+00:00" in result["reason"]


def test_held_champion_stays_even_if_an_earlier_promotion_runs_again(promote: Task, registry: Registry) -> None:
    promote(_evaluation_result(1, 0.7))
    better = _evaluation_result(2, 0.75, champion_version=1)
    promote(better)
    registry.promote("flights", 1, "2 fails on Sundays (anna)", hold=True)
    result = promote(better)
    assert (result["promoted"], result["verdict"], result["champion_version"]) == (False, "champion held", 1)
    assert "better by 0.05, but expected 1, the champion, which is held: 2 fails on Sundays (anna)" in result["reason"]
    registry.promote("flights", 1, "mended (anna)")
    assert promote(better)["verdict"] == "better"


@in_a_folder
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"improvement": 5}, "evaluation.improvement: got 5.0, expected 0.050"),
        ({"version": True}, "evaluation.version: got True, expected a valid integer"),
        ({"champion_version": True}, "evaluation.champion_version: got True, expected a valid integer"),
        ({"challenger": 10**400}, "evaluation.challenger: got 1000"),
    ],
)
def test_evaluation_that_contradicts_itself_is_rejected(promote: Task, changed: dict[str, Any], message: str) -> None:
    promote(_evaluation_result(1, 0.7))
    with pytest.raises(AirflowFailException, match=message):
        promote({**_evaluation_result(2, 0.75, champion_version=1), **changed})


@in_a_folder
@pytest.mark.parametrize("until", ["last week", "2026-01-01", None])
def test_other_data_until_of_a_user_does_not_prevent_a_promotion(
    promote: Task, registry: Registry, tmp_path: Path, until: object
) -> None:
    for value in (until, "2026-01-05T00:00:00+00:00"):
        registry.register(tmp_path / "model", name="flights", lineage={"data_until": value})
    registry.promote("flights", 4, "newest")
    assert promote(_evaluation_result(5, 0.75, champion_version=4))["verdict"] == "better"


@in_a_folder
def test_allow_older_accepts_only_a_bool(promote: Task) -> None:
    with pytest.raises(InvalidInputError, match="allow_older: got 'False', expected True or False"):
        promote(_evaluation_result(1, 0.7), allow_older="False")


def test_evaluation_without_a_digest_is_only_for_its_own_registry(promote: Task, store: Store) -> None:
    with pytest.raises(
        AirflowFailException, match="evaluation: got 'version 1 in /elsewhere', expected the version that"
    ):
        promote({**_evaluation_result(1, 0.7), "registry": "/elsewhere"})
    assert promote({**_evaluation_result(1, 0.7), "registry": store.location})["promoted"]


def test_champion_with_other_files_than_the_scored_ones_stays(promote: Task, registry: Registry) -> None:
    promote(_evaluation_result(1, 0.7))
    result = promote({**_evaluation_result(2, 0.75, champion_version=1), "champion_digest": 64 * "0"})
    assert (result["verdict"], result["champion_version"]) == ("champion changed", 1)
    assert "now version 1 with other files" in result["reason"]


@in_a_folder
@pytest.mark.parametrize(
    ("challenger", "min_improvement", "verdict", "reason"),
    [
        (0.69, 0.0, "not better", "not better"),
        (0.70, 0.0, "not better", "not better"),
        (0.72, 0.05, "improvement below min_improvement", "better by 0.02, less than the required 0.05"),
        (0.72, "0.05", "improvement below min_improvement", "better by 0.02, less than the required 0.05"),
    ],
)
def test_insufficient_improvement_keeps_the_champion_and_the_reason_is_reported(
    promote: Task, registry: Registry, challenger: float, min_improvement: Any, verdict: str, reason: str
) -> None:
    promote(_evaluation_result(1, 0.7))
    result = promote(_evaluation_result(2, challenger, champion_version=1), min_improvement=min_improvement)
    assert (result["promoted"], result["verdict"], result["champion_version"]) == (False, verdict, 1)
    assert result["reason"].endswith(reason)
    assert [p.version for p in registry.history("flights")] == [1]


# From -0.01 at 0 % to 0.09 at 100 %: 89.5 % of the resamples improve by more than 0, and 49.5 % by at least 0.0402.
DRAWN: dict[str, Any] = {"resamples": 1000, "pairs": 1000, "interval": [0.0, 0.1], "unseen_share": 0.01}
UNCERTAIN = {**DRAWN, "rows": 10**6, "quantiles": [-0.01 + step / 2000 for step in range(201)]}


@in_a_folder
@pytest.mark.parametrize(
    ("arguments", "verdict", "reason"),
    [
        ({"confidence": 0.895}, "better", "better by 0.05, above 0 with a confidence of 89.5 %"),
        ({"confidence": "0.895"}, "better", "better by 0.05, above 0 with a confidence of 89.5 %"),
        ({"confidence": None}, "better", "better by 0.05"),
        ({"confidence": "None"}, "better", "better by 0.05"),
        (
            {"confidence": 0.95},
            "not significantly better",
            "not significantly better: by 0.05, above 0 with a confidence of 89.5 %, less than the required 95 %",
        ),
        (
            {"confidence": 0.895, "min_improvement": 0.0402},
            "not significantly better",
            "by 0.05, at least 0.0402 with a confidence of 49.5 %, less than the required 89.5 %",
        ),
        (
            {"confidence": 0.895, "min_improvement": 0.06},
            "improvement below min_improvement",
            "better by 0.05, less than the required 0.06",
        ),
    ],
)
def test_confidence_decides_about_a_better_challenger(
    promote: Task, registry: Registry, arguments: dict[str, Any], verdict: str, reason: str
) -> None:
    promote(_evaluation_result(1, 0.7))
    result = promote(_evaluation_result(2, 0.75, champion_version=1, improvements=UNCERTAIN), **arguments)
    assert (result["verdict"], result["promoted"]) == (verdict, verdict == "better")
    assert result["reason"].endswith(reason)
    champion = registry.champion("flights")
    assert champion is not None
    assert champion.version == result["champion_version"] == (2 if verdict == "better" else 1)


@in_a_folder
def test_first_version_needs_no_confidence(promote: Task) -> None:
    assert promote(_evaluation_result(1, 0.7), confidence=0.95)["verdict"] == "first"


CLEAR = {**DRAWN, "quantiles": [0.04 + step / 10_000 for step in range(201)]}


@in_a_folder
@pytest.mark.parametrize(
    ("counts", "arguments", "verdict", "reason"),
    [
        ({"rows": 1}, {}, "too few rows", "but too few rows: 1, expected at least 300 (minimum_samples)"),
        ({"rows": 299}, {}, "too few rows", "but too few rows: 299, expected at least 300 (minimum_samples)"),
        ({"rows": 300}, {}, "better", "above 0 with a confidence of 100 %"),
        ({"rows": 999}, {"minimum_samples": 1000}, "too few rows", "999, expected at least 1000 (minimum_samples)"),
        ({"rows": 20}, {"minimum_samples": "20"}, "better", "above 0 with a confidence of 100 %"),
        ({"rows": 900, "groups": 19}, {}, "too few groups", "but too few groups: 19, expected at least 20"),
        ({"rows": 900, "groups": 20}, {}, "better", "above 0 with a confidence of 100 %"),
    ],
)
def test_too_few_samples_keep_the_champion(
    promote: Task, counts: dict[str, int], arguments: dict[str, Any], verdict: str, reason: str
) -> None:
    promote(_evaluation_result(1, 0.7))
    result = promote(
        _evaluation_result(2, 0.75, champion_version=1, improvements={**CLEAR, **counts}), confidence=0.95, **arguments
    )
    assert (result["verdict"], result["promoted"]) == (verdict, verdict == "better")
    assert result["reason"].endswith(reason)


@pytest.mark.parametrize("value", [19, 0, 20.5, "many", None])
def test_invalid_minimum_samples_is_rejected_when_the_dag_is_parsed(value: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"minimum_samples: got .*expected a whole number of at least 20"):
        PromoteOperator(task_id="promote", evaluation={}, registry="/tmp", minimum_samples=value)


@in_a_folder
@pytest.mark.parametrize("challenger", [0.65, 0.75])
def test_evaluation_without_resamples_cannot_have_a_confidence(
    promote: Task, registry: Registry, challenger: float
) -> None:
    promote(_evaluation_result(1, 0.7))
    with pytest.raises(AirflowFailException, match=r"improvements: got None.*report\(auc=resampled\("):
        promote(_evaluation_result(2, challenger, champion_version=1), confidence=0.95)
    earlier = _evaluation_result(2, challenger, champion_version=1)  # stored before the operator had improvements
    del earlier["improvements"]
    with pytest.raises(AirflowFailException, match=r"improvements: got None"):
        promote(earlier, confidence=0.95)
    assert len(registry.history("flights")) == 1


def test_champion_promoted_after_the_evaluation_is_kept(promote: Task, registry: Registry) -> None:
    promote(_evaluation_result(1, 0.7))
    registry.promote("flights", 3, "by hand")
    result = promote(_evaluation_result(2, 0.75, champion_version=1))
    assert (result["promoted"], result["verdict"], result["champion_version"]) == (False, "champion changed", 3)
    assert result["reason"] == "the champion is now version 3; version 2 was compared with 1"


def test_champion_promoted_during_the_decision_is_kept(
    promote: Task, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    promote(_evaluation_result(1, 0.7))
    read = type(registry).champion

    def read_before_another_promotion(self: Registry, name: str) -> Any:
        monkeypatch.setattr(type(registry), "champion", read)
        champion = read(self, name)  # type: ignore[arg-type]
        registry.promote(name, 3, "by another task")
        return champion

    monkeypatch.setattr(type(registry), "champion", read_before_another_promotion)
    result = promote(_evaluation_result(2, 0.75, champion_version=1))
    assert (result["promoted"], result["champion_version"]) == (False, 3)
    assert [one.version for one in registry.history("flights")] == [1, 3]


@in_a_folder
@pytest.mark.parametrize(
    ("evaluation", "message"),
    [
        ("None", "evaluation: got 'None', expected the result of EvaluateOperator"),
        (None, "evaluation: got None"),
        ({"model": "flights"}, r"missing: \['challenger', 'champion', 'champion_version'"),
        (
            json.dumps(_evaluation_result(1, 0.7))[:-1] + ', "challenger": 0.9}',
            r"expected .* \(a key is repeated in \['better', 'challenger', 'challenger',",
        ),
        ({**_evaluation_result(1, 0.7), "model": "../x"}, r"evaluation\.model: got '\.\./x'"),
        ({**_evaluation_result(1, 0.7), "challenger": float("nan")}, r"evaluation\.challenger: got nan"),
        (_evaluation_result(9, 0.7), r"version: got 9, expected a version of 'flights' \(1, 2, 3\)"),
    ],
)
def test_invalid_evaluation_is_rejected_by_field(
    promote: Task, registry: Registry, evaluation: Any, message: str
) -> None:
    # Text is checked when Airflow parses the DAG.
    with pytest.raises((AirflowFailException, InvalidInputError), match=message):
        promote(evaluation)
    assert registry.history("flights") == []


@pytest.mark.parametrize("kind", [PromoteOperator, ApproveOperator])
@pytest.mark.parametrize(
    ("evaluation", "got"),
    [
        (
            lambda train, evaluate: train.output,
            "got 'train.output, of a DeadlineTrainingOperator'",
        ),
        (lambda train, evaluate: train, r"got <Task\(DeadlineTrainingOperator\): train>, expected the result"),
        (lambda train, evaluate: evaluate, r"got <Task\(EvaluateOperator\): evaluate>, expected the result"),
        (
            lambda train, evaluate: evaluate.output["version"],
            r"got \"evaluate.output\['version'\], of a Evalu",
        ),
        (lambda train, evaluate: "evaluate", "got 'evaluate', expected the result of EvaluateOperator"),
    ],
)
def test_other_value_than_an_evaluation_is_rejected_when_the_dag_is_parsed(
    kind: Any, evaluation: Any, got: str
) -> None:
    with DAG("retrain", schedule=None):
        train, evaluate, _ = _tasks()
        arguments = {"registry": "/models"} if kind is PromoteOperator else {}
        with pytest.raises(InvalidInputError, match=rf"^evaluation: {got}.*\(task 'last'\)$"):
            kind(task_id="last", evaluation=evaluation(train, evaluate), **arguments)


@pytest.mark.parametrize("kind", [PromoteOperator, ApproveOperator])
def test_evaluation_of_a_task_that_may_return_one_is_accepted(kind: Any) -> None:
    with DAG("retrain", schedule=None):
        _, evaluate, other = _tasks()
        approve = ApproveOperator(task_id="approve", evaluation=evaluate.output)
        arguments = {"registry": "/models"} if kind is PromoteOperator else {}
        for number, source in enumerate((evaluate.output, approve.output, other.output, other.output["evaluation"])):
            kind(task_id=f"last_{number}", evaluation=source, **arguments)


class _TrainAndScore(DeadlineTrainingOperator):
    """An operator of a user, whose result is an evaluation."""


def test_results_of_a_users_own_operators_are_not_judged() -> None:
    with DAG("retrain", schedule=None):
        task = _TrainAndScore(task_id="train", command="python -m app.train", deadline="20m")
        for number, output in enumerate((task.output, task.output["evaluation"])):
            PromoteOperator(task_id=f"promote_{number}", evaluation=output, registry="/models")


def _tasks() -> tuple[DeadlineTrainingOperator, EvaluateOperator, BaseOperator]:
    """Return a training task, its evaluation, and a task that Paceline does not know."""
    train = DeadlineTrainingOperator(task_id="train", command="python -m app.train", deadline="20m")
    evaluate = EvaluateOperator(
        task_id="evaluate", script="evaluate.py", model="churn", registry="/models", challenger="new",
        data={"holdout": "holdout"}, metric="auc",
    )  # fmt: skip
    return train, evaluate, BaseOperator(task_id="other")


@pytest.mark.parametrize("value", [-0.1, "-1", "much", float("nan")])
def test_invalid_min_improvement_is_rejected_when_the_dag_is_parsed(value: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"min_improvement: got .*expected at least 0"):
        PromoteOperator(task_id="promote", evaluation={}, registry="/tmp", min_improvement=value)


@pytest.mark.parametrize("value", [0.5, 1, "95", -0.95, "high", float("nan")])
def test_invalid_confidence_is_rejected_when_the_dag_is_parsed(value: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"confidence: got .*expected a number between 0\.5 and 1"):
        PromoteOperator(task_id="promote", evaluation={}, registry="/tmp", confidence=value)
