"""Metrics of results, and the rules for Prometheus that watch them."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from tests.metrics import receive_metrics, statsd  # noqa: F401

from paceline.airflow.metrics import send_check, send_decision, send_evaluation, send_pool, send_promotion
from paceline.contract import DriftSummary, EvaluationResult, PromotionResult

PROJECT = Path(__file__).parents[3]
RULES = PROJECT / "docs" / "dashboards" / "prometheus-rules.yml"
TASK = SimpleNamespace(dag_id="retrain", task_id="task")
OF_TASK = "dag_id=retrain,task_id=task"


def received(statsd: socket.socket, number: int) -> list[str]:  # noqa: F811
    return [line.removeprefix("airflow.paceline.") for line in receive_metrics(statsd, number)]


def a_summary(**values: Any) -> DriftSummary:
    lists: dict[str, Any] = {name: [] for name in ("drifted_features", "drifted_segments", "quality")}
    flags = dict.fromkeys(("concept_drift", "joint_drift", "estimated_drift"), False)
    counts = dict.fromkeys(("features", "reference_rows", "current_rows"), 10)
    defaults = {"verdict": "no drift", "reason": "no drift", "estimated_error": None, "statistics": {}}
    return DriftSummary(
        **{**{name: list(value) for name, value in lists.items()}, **flags, **counts, **defaults, **values}
    )


def test_check_sends_its_verdict_and_its_drifted_features(statsd: socket.socket) -> None:  # noqa: F811
    drifted = {"verdict": "drift", "drifted_features": ["age", "fare"], "estimated_error": 0.25}
    send_check(TASK, a_summary(**drifted, model="churn", retrain=True))
    tags = f"{OF_TASK},model=churn"
    others = ("no_drift", "not_enough_data", "no_champion", "bad_data", "nothing_compared")
    assert sorted(received(statsd, 11)) == sorted(
        [
            f"drift_checks,{tags},verdict=drift:1|c",
            f"drift_verdict,{tags},verdict=drift:1|g",
            *(f"drift_verdict,{tags},verdict={verdict}:0|g" for verdict in others),
            f"drift_features,{tags}:10|g",
            f"drift_drifted_features,{tags}:2|g",
            f"drift_estimated_error,{tags}:0.25|g",
            f"drift_retrainings,{tags}:1|c",
        ]
    )


def test_each_instance_of_a_mapped_sensor_has_its_own_gauges(statsd: socket.socket) -> None:  # noqa: F811
    for index in (0, 1):
        send_check(TASK, a_summary(drifted_features=["age"] * index), map_index=index)
    gauges = [line for line in received(statsd, 18) if line.startswith("drift_drifted_features")]
    assert gauges == [f"drift_drifted_features,{OF_TASK},map_index={index}:{index}|g" for index in (0, 1)]


def test_verdict_of_two_words_is_one_tag(statsd: socket.socket) -> None:  # noqa: F811
    send_check(TASK, a_summary(verdict="bad data"))
    assert received(statsd, 1) == [f"drift_checks,{OF_TASK},verdict=bad_data:1|c"]


def test_evaluation_sends_its_scores(statsd: socket.socket) -> None:  # noqa: F811
    scores = {"challenger": 0.8, "champion": 0.75, "champion_version": 1, "improvement": 0.05}
    send_evaluation(TASK, EvaluationResult(model="churn", version=2, metric="F1 (macro)", **scores))
    tags = f"{OF_TASK},model=churn,metric=F1__macro_"
    assert received(statsd, 3) == [
        f"evaluation_challenger,{tags}:0.8|g",
        f"evaluation_champion,{tags}:0.75|g",
        f"evaluation_improvement,{tags}:0.05|g",
    ]


def test_promotion_sends_its_decision_and_the_champion(statsd: socket.socket) -> None:  # noqa: F811
    result = PromotionResult(
        promoted=True,
        verdict="better",
        reason="better",
        model="churn",
        registry="/registry",
        version=2,
        champion_version=2,
        previous_version=1,
    )
    send_promotion(TASK, result)
    tags = f"{OF_TASK},model=churn"
    assert received(statsd, 3) == [
        f"promotion_decisions,{tags},verdict=better:1|c",
        f"promotions,{tags}:1|c",
        f"champion_version,{tags}:2|g",
    ]


def test_arbiter_sends_the_state_of_its_pool(statsd: socket.socket) -> None:  # noqa: F811
    send_decision("gpus", 3.5)
    send_pool("gpus", {"devices": 6.0, "waiting": 2})
    assert received(statsd, 4) == [
        "arbiter_decisions,pool=gpus:1|c",
        "arbiter_decision,pool=gpus:3.500000|ms",
        "pool_devices,pool=gpus:6.0|g",
        "pool_waiting,pool=gpus:2|g",
    ]


def test_rules_use_metrics_that_the_guide_describes() -> None:
    guide = (PROJECT / "docs" / "watch.md").read_text()
    described = {name.replace(".", "_") for name in re.findall(r"`(paceline\.\w+)`", guide)}
    used = set(re.findall(r"airflow_(paceline_\w+)", RULES.read_text()))
    assert used <= described


LATE = {
    "slack_s{dag_id='a',task_id='train'}": "-30x10",
    "deadline_s{dag_id='a',task_id='train'}": "1000x10",
    "progress_pct{dag_id='a',task_id='train'}": "50x10",
}
SLACK, _, PROGRESS = LATE
MAPPED = {f"{name[:-1]},map_index='{index}'}}": value for name, value in LATE.items() for index in (1, 2)}
ENDED = {SLACK.replace("}", ",map_index='1'}"): "30x10", PROGRESS.replace("}", ",map_index='2'}"): "100x10"}
LATE_TASK = [{"dag_id": "a", "task_id": "train"}]
VERDICT = "drift_verdict{dag_id='a',task_id='check',verdict='%s'}"
SCORE, CHAMPION = "evaluation_challenger{task_id='evaluate',model='churn'}", "champion_version{model='churn'}"
CHECK = {"dag_id": "a", "task_id": "check"}
ONCE = "1x4 _x60"  # OpenTelemetry's exporter forgets a value after 5 minutes
DEVICES = "pool_devices{pool='gpus'}"
CHAMPIONS = "3 _x191 %d _x23"  # in hours
TRAININGS = {SCORE: "_x119 0.5 _x23 0.6 _x23 0.4 _x23", CHAMPION: CHAMPIONS % 3}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (Debian: prometheus)")
@pytest.mark.parametrize(
    ("alert", "series", "at", "labels"),
    [
        ("PacelineLate", LATE, "5m", LATE_TASK),
        ("PacelineLate", LATE | {PROGRESS: "100x10"}, "5m", []),
        ("PacelineLate", LATE | {SLACK: "30x10"}, "5m", []),
        ("PacelineLate", LATE | {SLACK: "-4x10"}, "5m", []),
        ("PacelineLate", MAPPED, "5m", [{**LATE_TASK[0], "map_index": str(index)} for index in (1, 2)]),
        ("PacelineLate", MAPPED | ENDED, "5m", []),
        ("PacelineDrift", {VERDICT % "drift": ONCE}, "40m", [CHECK | {"verdict": "drift"}]),
        ("PacelineDrift", {VERDICT % "drift": ONCE}, "70m", []),
        ("PacelineDrift", {VERDICT % "drift": "1x4 0x60"}, "40m", []),
        ("PacelineBadData", {VERDICT % "bad_data": ONCE}, "40m", [CHECK | {"verdict": "bad_data"}]),
        ("PacelineBadData", {VERDICT % "drift": "1x60"}, "40m", []),
        ("PacelineTrainsWithoutPromotion", TRAININGS, "9d", [{"model": "churn"}]),
        ("PacelineTrainsWithoutPromotion", TRAININGS | {CHAMPION: CHAMPIONS % 4}, "9d", []),
        ("PacelineTrainsWithoutPromotion", TRAININGS | {SCORE: "_x119 0.5x90"}, "9d", []),
        ("PacelineArbiterGone", {DEVICES: "4x9 _x600"}, "20m", [{"pool": "gpus"}]),
        ("PacelineArbiterGone", {DEVICES: "4x9 _x600"}, "10h", [{"pool": "gpus"}]),
        ("PacelineArbiterGone", {DEVICES: "4x9 _x5 4x600"}, "12m", []),
        ("PacelineArbiterGone", {DEVICES: "4x600"}, "10h", []),
        ("PacelineDevicesReserved", {"pool_reserved{pool='gpus'}": "2x30"}, "20m", [{"pool": "gpus"}]),
        ("PacelineDevicesReserved", {"pool_reserved{pool='gpus'}": "0x30"}, "20m", []),
    ],
)
def test_prometheus_raises_the_alert(
    tmp_path: Path, alert: str, series: dict[str, str], at: str, labels: list[dict[str, str]]
) -> None:
    rules = yaml.safe_load(RULES.read_text())
    (rule,) = [rule for group in rules["groups"] for rule in group["rules"] if rule["alert"] == alert]
    del rule["annotations"]  # promtool compares them, too
    interval = "1h" if at.endswith("d") else "1m"
    tests = {
        "rule_files": ["rules.yml"],
        "evaluation_interval": interval,
        "tests": [
            {
                "interval": interval,
                "input_series": [
                    {"series": f"airflow_paceline_{name}", "values": all_} for name, all_ in series.items()
                ],
                "alert_rule_test": [
                    {
                        "eval_time": at,
                        "alertname": alert,
                        "exp_alerts": [{"exp_labels": {**rule["labels"], **one}} for one in labels],
                    }
                ],
            }
        ],
    }
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "paceline", "rules": [rule]}]}))
    (tmp_path / "tests.yml").write_text(yaml.safe_dump(tests))
    ran = subprocess.run(["promtool", "test", "rules", tmp_path / "tests.yml"], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (Debian: prometheus)")
def test_rules_are_valid() -> None:
    ran = subprocess.run(["promtool", "check", "rules", RULES], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
