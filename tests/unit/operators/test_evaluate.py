"""``EvaluateOperator`` with a real registry. Tests of scoring run real jobs of the process runtime."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from tests.s3_server import serve
from tests.unit.registry.stores import Store

from paceline.airflow import arguments as arguments_module
from paceline.airflow.places import storage_path
from paceline.contract import EVALUATION_XCOM
from paceline.drift import DriftReport
from paceline.errors import InvalidInputError
from paceline.operators import EvaluateOperator, PromoteOperator
from paceline.operators._direction import direction
from paceline.operators._scoring import ScoringJobs
from paceline.operators.improvement import ResampleCollector
from paceline.registry import FileRegistry
from paceline.run import MemoryState
from paceline.runtime import ProcessRuntime
from paceline.runtime.process_job import ProcessJob
from paceline.sensors.check import DriftCheck
from paceline.sensors.reports import summarise

Task = Callable[..., Any]
# A model is a file that contains the model's quality. The scoring script reads the model and the data.
SCRIPT = """
import json
from paceline.train import input_dir, report
quality = json.loads((input_dir() / "model" / "model.json").read_text())
rows = (input_dir() / "data" / "holdout.csv").read_text().split()
print("scoring", len(rows), "rows")
report(auc=quality["auc"], rows=len(rows), loss_of_money=1 - quality["auc"])
"""
# The mean score of the rows differs from the model's quality by chance. The same rows are easy for both models.
RESAMPLED = """
import json
import numpy as np
from paceline.train import input_dir, report, resampled
quality = json.loads((input_dir() / "model" / "model.json").read_text())["auc"]
easy = np.random.default_rng(0).normal(size=ROWS)
scores = quality + easy + 0.3 * np.random.default_rng(int(1000 * quality)).normal(size=ROWS)
report(auc=resampled(lambda rows: scores[rows].mean(), rows=len(scores), resamples=2000))
"""
REPORT = "import os\nfrom paceline.train import report, track\n"
FORK_THAT_ENDS_LAST = """
import atexit, os
end, begin = os.pipe()
parent = os.getpid()
def wait_for_child():  # runs after the last report, because atexit calls functions in reverse order
    if os.getpid() == parent:
        os.close(begin)
        os.wait()
atexit.register(wait_for_child)
report(auc=0.9)
report(auc=0.8)  # too soon for a line of its own
if os.fork() == 0:
    os.close(begin)
    os.read(end, 1)
else:
    report(auc=0.5)
"""
POOL_THAT_REPORTS_TWICE = """
import multiprocessing
def score():
    report(part=1)
    report(part=2)  # too soon for a line of its own
child = multiprocessing.get_context("fork").Process(target=score)
child.start()
child.join()
report(auc=0.5)
"""
SUBPROCESS_WITHOUT_OUTPUT = """
import subprocess, sys
report(auc=0.9)
subprocess.run([sys.executable, "-c", "from paceline.train import report; report(auc=0.5)"], stdout=subprocess.DEVNULL)
"""
FORK_WITHOUT_OUTPUT = """
import os
if os.fork() == 0:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    report(auc=0.9)
else:
    os.wait()
    report(auc=0.5)
"""
DISCARD = "import os; os.dup2(os.open(os.devnull, os.O_WRONLY), 1)\n"  # as `script > /dev/null` does
UNREADABLE = """print('@paceline {"done": 1, "total": 1, "metrics": {"auc": "high"}}')"""


@pytest.fixture
def registry(tmp_path: Path) -> FileRegistry:
    return FileRegistry(tmp_path / "registry")


@pytest.fixture
def evaluate(tmp_path: Path, process_runtime_root: Path, monkeypatch: pytest.MonkeyPatch) -> Task:
    """Return a function that runs the operator. If ``challenger`` is a number, the model has that quality."""
    monkeypatch.setattr(EvaluateOperator, "open_runtime", lambda self, _: ProcessRuntime(process_runtime_root))
    (tmp_path / "evaluate.py").write_text(SCRIPT)
    (tmp_path / "holdout.csv").write_text("1\n2\n3\n")

    def run_operator(challenger: float | str, run_id: str = "monday", dag_run: object = None, **arguments: Any) -> Any:
        if isinstance(challenger, float):
            folder = tmp_path / f"trained-{challenger}"
            folder.mkdir(exist_ok=True)
            (folder / "model.json").write_text(json.dumps({"auc": challenger}))
            challenger = str(folder)
        operator = EvaluateOperator(
            **{
                "task_id": "evaluate",
                "model": "flights",
                "registry": str(tmp_path / "registry"),
                "challenger": challenger,
                "data": {"holdout.csv": str(tmp_path / "holdout.csv")},
                "script": str(tmp_path / "evaluate.py"),
                "metric": "auc",
                "runtime": "process",
                **arguments,
            }
        )
        push = Mock()
        ti = SimpleNamespace(dag_id="retrain", run_id=run_id, task_id="evaluate", map_index=-1, xcom_push=push)
        result = operator.execute({"ti": ti, "dag_run": dag_run, "task_state_store": MemoryState()})  # type: ignore[typeddict-item]
        push.assert_called_once_with(key=EVALUATION_XCOM, value=True)
        return result

    return run_operator


@pytest.fixture
def evaluate_directly(evaluate: Task, monkeypatch: pytest.MonkeyPatch) -> Task:
    """Return ``evaluate`` with a scoring function instead of a job. The score is the quality in the model's file."""

    def score(self: EvaluateOperator, context: Any, runtime: Any, role: str, model: Path, *others: Any) -> Any:
        auc = json.loads((model / "model.json").read_text())["auc"]
        return {"auc": auc, "loss_of_money": 1 - auc}, ResampleCollector(self.metric)

    monkeypatch.setattr(EvaluateOperator, "_score", score)
    return evaluate


def test_first_challenger_is_scored_and_registered_as_better_if_there_is_no_champion(
    evaluate: Task, registry: FileRegistry, process_runtime_root: Path
) -> None:
    result = evaluate(0.7, data_window={"windows": ["2013-07"]}, lineage={"drift_report": "s3://reports/1.json"})
    assert result.pop("registry").endswith("/registry")
    assert result.pop("digest") == registry.version("flights", 1).digest
    assert result == {
        "model": "flights",
        "version": 1,
        "metric": "auc",
        "challenger": 0.7,
        "champion": None,
        "champion_version": None,
        "champion_digest": None,
        "better": True,
        "improvement": None,
        "greater_is_better": True,
        "improvements": None,
        "challenger_metrics": {"auc": 0.7, "rows": 3.0, "loss_of_money": pytest.approx(0.3)},
        "champion_metrics": None,
    }
    version = registry.version("flights", 1)
    assert version.metrics["auc"] == 0.7
    assert version.data_window == {"windows": ["2013-07"]}
    lineage = {"drift_report": "s3://reports/1.json", "dag_id": "retrain", "run_id": "monday", "task_id": "evaluate"}
    assert lineage.items() <= dict(version.lineage).items()
    assert registry.champion("flights") is None, "the evaluation registers but does not promote"
    assert list(process_runtime_root.iterdir()) == [], "the job was removed"


def test_champion_and_challenger_are_scored_on_the_same_data(evaluate: Task, store: Store, tmp_path: Path) -> None:
    store.forget("flights")
    evaluate(0.7, registry=store.location)
    store.open().promote("flights", 1, "first")
    (tmp_path / "holdout.csv").write_text("1\n2\n3\n4\n5\n")
    result = evaluate(0.75, run_id="tuesday", registry=store.location)
    assert (result["version"], result["champion_version"]) == (2, 1)
    assert (result["challenger"], result["champion"], result["better"]) == (0.75, 0.7, True)
    assert result["improvement"] == pytest.approx(0.05)
    assert result["champion_metrics"]["rows"] == result["challenger_metrics"]["rows"] == 5


@pytest.mark.parametrize(
    ("challenger", "metric", "greater_is_better", "better"),
    [
        (0.6, "auc", True, False),
        (0.6, "auc", False, True),
        (0.6, "loss_of_money", False, False),
        (0.7, "auc", True, False),
    ],
)
def test_direction_of_the_metric_decides_which_model_is_better(
    evaluate_directly: Task,
    registry: FileRegistry,
    challenger: float,
    metric: str,
    greater_is_better: bool,
    better: bool,
) -> None:
    evaluate_directly(0.7)
    registry.promote("flights", 1, "first")
    result = evaluate_directly(challenger, run_id="tuesday", metric=metric, greater_is_better=greater_is_better)
    assert result["better"] is better
    assert result["greater_is_better"] is greater_is_better
    assert (result["improvement"] > 0) is better


# As scikit-learn, XGBoost, LightGBM, CatBoost, Keras and torchmetrics name them, and as users do.
LOSSES = [
    *("loss", "val_loss", "logLoss", "RMSE", "mean_squared_error", "test-mae", "cost", "neg_mean_squared_error"),
    *("brier_score_loss", "davies_bouldin_score", "neg_log_likelihood", "jaccard_distance"),
    *("merror", "error@0.7", "mlogloss", "poisson-nloglik", "gamma-deviance", "mphe", "rmsle"),
    *("l1", "valid_0 l2", "quantile", "huber", "poisson", "tweedie", "kullback_leibler", "cross_entropy"),
    *("Logloss", "MultiClass", "RMSE", "Lq", "LogCosh", "NumErrors", "BalancedErrorRate", "QuerySoftMax"),
    *("binary_crossentropy", "kl_divergence", "val_hinge", "WordErrorRate", "FID"),
    *("wape", "mase", "rmspe", "crps", "ece", "latency_ms", "profit", "score"),
    *("accuracy_score_difference", "auc_delta", "recall_disparity", "accuracy_variance", "r2_mse", "precision_diff"),
    *("auc_loss", "1-auc", "1 - accuracy", "accuracy_gap", "accuracy_std", "f1_error", "recall_latency_ms", "neg_auc"),
]
SCORES = [
    *("auc", "val_AUC", "valid_0 auc", "auc_mu", "aucpr", "roc_auc_ovr_weighted", "PRAUC", "QueryAUC", "BinaryAUROC"),
    *("acc", "accuracy", "BalancedAccuracy", "top_k_categorical_accuracy", "interval-regression-accuracy"),
    *("f1", "F1 (macro)", "TotalF1", "F1Score", "f2", "fbeta_score", "precision", "recall@10", "specificity"),
    *("ndcg@5", "map@3-", "mAP50", "mIoU", "MeanIoU", "dice", "JaccardIndex", "average_precision", "mrr"),
    *(
        "r2",
        "val_r2_score",
        "explained_variance",
        "ExplainedVariance",
        "MCC",
        "MatthewsCorrCoef",
        "cohen_kappa",
        "PearsonCorrCoef",
    ),
    *("bleu-4", "rougeL", "psnr", "ssim", "silhouette_score", "adjusted_rand_score"),
]


@pytest.mark.parametrize("metric", SCORES)
def test_greater_is_better_by_default_for_a_known_score(metric: str) -> None:
    assert direction(metric, None) is True
    assert direction(metric, False) is False, "the user's argument replaces the default"


@pytest.mark.parametrize("metric", LOSSES)
def test_metric_that_is_not_a_known_score_needs_its_direction(evaluate_directly: Task, metric: str) -> None:
    with pytest.raises(
        InvalidInputError, match=f"greater_is_better: got None, expected True or False, because '{re.escape(metric)}'"
    ):
        evaluate_directly(0.7, metric=metric)


@pytest.mark.parametrize("metric", ["", " ", "auc\n", None])
def test_metric_without_a_name_is_rejected_when_the_dag_is_parsed(evaluate_directly: Task, metric: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"metric: got .*, expected the name of a score"):
        evaluate_directly(0.7, metric=metric)


@pytest.mark.parametrize("given", ["False", 0, "{{ params.direction }}"])
def test_direction_that_is_not_a_bool_is_rejected(evaluate_directly: Task, given: Any) -> None:
    with pytest.raises(InvalidInputError, match="greater_is_better: got"):
        evaluate_directly(0.7, greater_is_better=given)


@pytest.mark.parametrize("location", ["models/reg", "~/r", "s3:/b/r", "mlflow:/x"])
def test_registry_in_the_working_folder_is_rejected(evaluate_directly: Task, location: str) -> None:
    with pytest.raises(InvalidInputError, match=f"registry: got '{location}', expected an absolute path"):
        evaluate_directly(0.7, registry=location)


def test_score_named_loss_is_compared(evaluate: Task, registry: FileRegistry, tmp_path: Path) -> None:
    script = tmp_path / "loss.py"
    script.write_text(RESAMPLED.replace("report(auc=", "report(loss=").replace("ROWS", "300"))
    arguments = {"script": str(script), "metric": "loss", "greater_is_better": False}
    first = evaluate(0.7, **arguments)
    registry.promote("flights", 1, "first")
    result = evaluate(0.6, run_id="tuesday", **arguments)
    assert result["challenger_metrics"] == {"loss": result["challenger"]} != first["challenger_metrics"]
    assert result["better"]
    assert result["improvements"]["rows"] == 300


@pytest.mark.parametrize("known", ["data_interval_end", "logical_date", "run_after"])
def test_version_records_the_time_up_to_which_its_run_covers_the_data(
    evaluate_directly: Task, registry: FileRegistry, known: str
) -> None:
    times = dict.fromkeys(["data_interval_end", "logical_date", "run_after"])
    run = SimpleNamespace(start_date=None, **{**times, known: datetime(2026, 1, 5, tzinfo=timezone.utc)})
    evaluate_directly(0.7, dag_run=run)
    assert registry.version("flights", 1).lineage["data_until"] == "2026-01-05T00:00:00+00:00"


def test_retry_returns_the_same_version_for_the_same_model(evaluate_directly: Task) -> None:
    first = evaluate_directly(0.7)
    assert evaluate_directly(0.7) == first
    assert [first["version"], evaluate_directly(0.71)["version"]] == [1, 2]


def test_retry_after_a_file_has_become_executable_registers_another_version(
    evaluate_directly: Task, store: Store, tmp_path: Path
) -> None:
    store.forget("flights")
    assert evaluate_directly(0.7, registry=store.location)["version"] == 1
    (tmp_path / "trained-0.7" / "model.json").chmod(0o755)
    assert evaluate_directly(0.7, registry=store.location)["version"] == 2
    assert store.open().version("flights", 2).files["model.json"].executable


def test_repeated_evaluation_compares_with_the_previous_champion(evaluate_directly: Task, store: Store) -> None:
    store.forget("flights")
    registry = store.open()
    evaluate_directly(0.7, registry=store.location)
    registry.promote("flights", 1, "first")
    before = evaluate_directly(0.75, run_id="tuesday", registry=store.location)
    registry.promote("flights", 2, "better")
    assert evaluate_directly(0.75, run_id="tuesday", registry=store.location) == before


def test_modified_or_deleted_champion_is_not_scored(evaluate_directly: Task, store: Store) -> None:
    store.forget("flights")
    registry = store.open()
    evaluate_directly(0.7, registry=store.location)
    registry.promote("flights", 1, "first")
    champion = registry.version("flights", 1)
    (store.folder(champion) / "model.json").write_text('{"auc": 0.1}')
    with pytest.raises(AirflowFailException, match="as in the manifest; the file has changed"):
        evaluate_directly(0.75, run_id="tuesday", registry=store.location)
    assert len(registry.versions("flights")) == 1
    store.delete(champion)
    with pytest.raises(AirflowFailException, match=r"champion.*version 1|version: got 1, .*the champion, is missing"):
        evaluate_directly(0.75, run_id="tuesday", registry=store.location)
    assert registry.versions("flights") == []


@pytest.mark.parametrize(
    ("challenger", "better", "verdict"),
    [
        (0.85, True, "better"),
        (0.72, True, "not significantly better"),
        (0.60, False, "not better"),
    ],
)
def test_script_that_reports_resamples_makes_the_promotion_depend_on_the_confidence(
    evaluate: Task, registry: FileRegistry, tmp_path: Path, challenger: float, better: bool, verdict: str
) -> None:
    script = tmp_path / "resampled.py"
    script.write_text(RESAMPLED.replace("ROWS", "300"))
    first = evaluate(0.7, script=str(script))
    assert first["improvements"] is None
    registry.promote("flights", 1, "first")
    result = evaluate(challenger, run_id="tuesday", script=str(script))
    summary = result["improvements"]
    assert (result["better"], summary["rows"], summary["pairs"]) == (better, 300, 2000)
    low, high = summary["interval"]
    assert low < result["improvement"] < high
    assert high - low < 0.1, "the interval of unpaired resamples is 0.28 wide"
    assert len(json.dumps(result)) < 4096, "the result contains a summary, not each resample"
    decision = decide(result)
    assert (decision["verdict"], decision["promoted"]) == (verdict, verdict == "better")


def decide(evaluation: Any) -> Any:
    """Return the result of the promotion, which reads the evaluation as a rendered template."""
    operator = PromoteOperator(
        task_id="promote", evaluation=json.dumps(evaluation), registry=evaluation["registry"], confidence=0.95
    )
    return operator.execute({"ti": Mock(spec=["xcom_push"])})  # type: ignore[typeddict-item]


def test_hold_out_of_one_row_promotes_nothing(evaluate: Task, registry: FileRegistry, tmp_path: Path) -> None:
    script = tmp_path / "one.py"
    script.write_text(RESAMPLED.replace("ROWS", "1"))
    evaluate(0.1, script=str(script))
    registry.promote("flights", 1, "first")
    result = evaluate(0.9, run_id="tuesday", script=str(script))
    assert (result["better"], result["improvements"]["rows"]) == (True, 1)
    decision = decide(result)
    assert (decision["promoted"], decision["verdict"]) == (False, "too few rows")


# Each customer has ten equal rows, so that there are a tenth as many independent scores.
CUSTOMERS = """
import json
import numpy as np
from paceline.train import input_dir, report, resampled
quality = json.loads((input_dir() / "model" / "model.json").read_text())["auc"]
customers = np.repeat(np.arange(60), 10)
scores = np.random.default_rng(int(1000 * quality)).normal(size=60)
scores = (quality + scores - scores.mean())[customers]
report(auc=resampled(lambda rows: scores[rows].mean(), rows=600, GROUPS))
"""


@pytest.mark.parametrize(
    ("groups", "sign"),
    [
        ("groups=customers", None),
        ("resamples=1000", "neighbouring rows look dependent"),
    ],
)
def test_rows_that_belong_together_do_not_confirm_an_improvement(
    evaluate: Task,
    registry: FileRegistry,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    groups: str,
    sign: str | None,
) -> None:
    script = tmp_path / "customers.py"
    script.write_text(CUSTOMERS.replace("GROUPS", groups))
    evaluate(0.7, script=str(script))
    registry.promote("flights", 1, "first")
    result = evaluate(0.83, run_id="tuesday", script=str(script))
    assert result["improvements"]["groups"] == (None if sign else 60)
    decision = decide(result)
    assert decision["verdict"] == "not significantly better"
    assert (sign or "confidence") in decision["reason"]
    if sign:
        assert sign in capsys.readouterr().out


def test_repeated_lines_of_the_data_are_reported(
    evaluate: Task, registry: FileRegistry, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "resampled.py"
    script.write_text(RESAMPLED.replace("ROWS", "300"))
    evaluate(0.7, script=str(script))
    registry.promote("flights", 1, "first")
    assert evaluate(0.85, run_id="tuesday", script=str(script))["improvements"]["repeated_lines"] == 0
    rows = "".join(f"{row % 200},4.5\n" for row in range(300))
    (tmp_path / "holdout.csv").write_text("age,pay\n" + rows)
    result = evaluate(0.85, run_id="wednesday", script=str(script))
    assert result["improvements"]["repeated_lines"] == 100
    assert "100 lines of the data repeat an earlier line" in capsys.readouterr().out
    assert "100 lines of the data repeat an earlier line" in decide(result)["reason"]


def test_resamples_of_different_numbers_of_rows_are_rejected(
    evaluate: Task, registry: FileRegistry, tmp_path: Path
) -> None:
    script = tmp_path / "resampled.py"
    script.write_text(RESAMPLED.replace("ROWS", "int(1000 * quality)"))
    evaluate(0.7, script=str(script))
    registry.promote("flights", 1, "first")
    with pytest.raises(AirflowFailException, match="rows: got '750 for the challenger and 700 for the champion'"):
        evaluate(0.75, run_id="tuesday", script=str(script))
    assert len(registry.versions("flights")) == 1


@pytest.mark.parametrize(
    ("script", "auc"),
    [
        ("report(auc=0.9); report(auc=0.5)", 0.5),
        ("report(auc=float('nan')); report(auc=0.5)", 0.5),
        ("report(**{f'score_{k}': 0.1 for k in range(400)}, auc=0.5)", 0.5),
        ("for k in track(range(9)):\n    report(auc=k)\n    if k == 5: break", 5.0),
        ("import os\nreport(auc=0.9)\nif os.fork() == 0: report(part=1)\nelse: os.wait(), report(auc=0.5)", 0.5),
        ("import sys\nreport(auc=0.9)\nsys.stdout.close()\nreport(auc=0.5)", 0.5),
        (FORK_THAT_ENDS_LAST, 0.5),
        (POOL_THAT_REPORTS_TWICE, 0.5),
        ("import os\nreport(auc=0.9)\nos.write(1, b'50 %')\nreport(auc=0.5)", 0.5),
        (DISCARD + "report(auc=0.5)", 0.5),
        ("report(auc=0.9)\n" + DISCARD + "report(auc=0.5)", 0.5),
        (SUBPROCESS_WITHOUT_OUTPUT, 0.5),
        (FORK_WITHOUT_OUTPUT, 0.5),
        ("import os\nout = os.dup(1)\n" + DISCARD + "report(auc=0.9)\nos.dup2(out, 1)\nreport(auc=0.5)", 0.5),
    ],
)
def test_last_report_counts(evaluate: Task, tmp_path: Path, script: str, auc: float) -> None:
    (tmp_path / "last.py").write_text("from paceline.train import report, track\n" + script)
    assert evaluate(0.7, script=str(tmp_path / "last.py"))["challenger"] == auc


@pytest.mark.parametrize("replaced", ["holdout.csv", "trained-0.7/model.json", "replace.py", "settings.json"])
def test_replacing_a_file_while_models_are_scored_fails_the_task(
    evaluate: Task, registry: FileRegistry, tmp_path: Path, replaced: str
) -> None:
    (tmp_path / "settings.json").touch()
    (tmp_path / "replace.py").write_text(SCRIPT + f"open({str(tmp_path / replaced)!r}, 'w').write('1')\n")
    inputs = {"settings.json": str(tmp_path / "settings.json")}
    with pytest.raises(AirflowException, match=f"{replaced} has changed|trained-0.7 has changed") as caught:
        evaluate(0.7, script=str(tmp_path / "replace.py"), inputs=inputs)
    assert not isinstance(caught.value, AirflowFailException), "a retry can succeed"
    assert registry.versions("flights") == []


def test_remote_inputs_are_the_same_for_both_models(
    evaluate: Task, registry: FileRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch = FileRegistry.fetch

    def fetch_late(self: FileRegistry, *arguments: Any) -> Any:
        threshold.write_text("0.1")
        return fetch(self, *arguments)

    monkeypatch.setattr(FileRegistry, "fetch", fetch_late)
    (tmp_path / "score.py").write_text(
        "from paceline.train import input_dir, report\nreport(auc=float((input_dir() / 'threshold').read_text()))"
    )
    arguments = {"script": str(tmp_path / "score.py"), "inputs": {"threshold": "s3://models/threshold"}}
    with serve() as server:
        threshold = server.folder(tmp_path.name) / "threshold"
        threshold.write_text("0.6")
        # The test needs no Airflow connection.
        remote = {"s3://models/threshold": threshold}
        monkeypatch.setattr(arguments_module, "storage_path", lambda value: remote.get(value) or storage_path(value))
        evaluate(0.7, **arguments)
        registry.promote("flights", 1, "first")
        result = evaluate(0.75, run_id="tuesday", **arguments)
    assert (result["challenger"], result["champion"]) == (0.6, 0.6)


@pytest.mark.parametrize("replaced", [False, True])
def test_version_says_that_the_file_of_its_window_has_changed(
    evaluate_directly: Task,
    registry: FileRegistry,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    replaced: bool,
) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("age\n" + "29\n30\n" * 100)
    check = DriftCheck("SELECT 1", str(file))
    summary = summarise(check, DriftReport("drift", "", 0, 200), check.read_current(), None)
    window = summary.to_json()["window"]
    if replaced:
        file.write_text("age\n" + "70\n71\n" * 100)
    evaluate_directly(0.7, data_window=window)
    version = registry.version("flights", 1)
    assert version.data_window["source"] == str(file)
    assert version.lineage.get("data_window_changed") == (str(file) if replaced else None)
    assert (f"{file} has changed since its drift check" in capsys.readouterr().out) is replaced


def test_model_that_changes_while_it_is_registered_is_not_registered(
    evaluate_directly: Task, registry: FileRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register = FileRegistry.register

    def register_late(self: FileRegistry, folder: Path, **arguments: Any) -> Any:
        (folder / "model.json").write_text('{"auc": 0.1}')
        return register(self, folder, **arguments)

    monkeypatch.setattr(FileRegistry, "register", register_late)
    with pytest.raises(AirflowException, match=r"trained-0\.7 has changed while it was reg") as caught:
        evaluate_directly(0.7)
    assert not isinstance(caught.value, AirflowFailException), "a retry can succeed"
    assert registry.versions("flights") == []


@pytest.mark.parametrize("name", ["model", "model/model.json", "data/holdout.csv"])
def test_input_with_the_name_of_the_model_or_the_data_is_rejected(evaluate: Task, tmp_path: Path, name: str) -> None:
    with pytest.raises(AirflowFailException, match=f"inputs: got '{name}', expected another name"):
        evaluate(0.7, inputs={name: str(tmp_path / "holdout.csv")})


def test_link_to_a_folder_in_the_data_is_rejected(evaluate: Task, tmp_path: Path) -> None:
    (tmp_path / "holdout").mkdir()
    (tmp_path / "holdout" / "part").symlink_to(tmp_path)
    with pytest.raises(AirflowFailException, match=r"inputs: got .*holdout/part', expected files, links to files, and"):
        evaluate(0.7, data={"holdout.csv": str(tmp_path / "holdout.csv"), "more": str(tmp_path / "holdout")})


def test_retry_after_a_kill_scores_with_a_mended_script(
    evaluate: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    (tmp_path / "score.py").write_text("import time; time.sleep(3600)")
    with monkeypatch.context() as patch:
        patch.setattr(ScoringJobs, "_read", Mock(side_effect=Killed))
        patch.setattr(ProcessJob, "remove", lambda self: None)
        with pytest.raises(Killed):
            evaluate(0.7, script=str(tmp_path / "score.py"))
    (tmp_path / "score.py").write_text(SCRIPT)
    assert evaluate(0.7, script=str(tmp_path / "score.py"))["challenger"] == 0.7


def test_malformed_resamples_are_ignored(evaluate: Task, registry: FileRegistry, tmp_path: Path) -> None:
    script = tmp_path / "malformed.py"
    script.write_text(
        'print(\'@paceline {"done": 1, "total": 1, "event": "report", "resamples": {"auc": [1]}}\')\n' + SCRIPT
    )
    evaluate(0.7, script=str(script))
    registry.promote("flights", 1, "first")
    result = evaluate(0.75, run_id="tuesday", script=str(script))
    assert (result["better"], result["improvements"]) == (True, None)


@pytest.mark.parametrize(
    ("script", "error", "message"),
    [
        ("raise RuntimeError('no such column')", AirflowException, "scoring the challenger.*no such column"),
        ("import churn_features", AirflowFailException, r"scoring the chall.*add files=\{'churn_features.py'"),
        (
            "print('done')",
            AirflowFailException,
            "metric: got 'auc'.*script, from which no report arrived for the chall",
        ),
        (REPORT + "report(auc=0.9); report(auc=True)", AirflowException, "auc: got True, expected one number"),
        ("from paceline.train import report; report(accuracy=0.9)", AirflowFailException, "which reported accuracy"),
        (UNREADABLE, AirflowFailException, "metric: got 'auc'.*which last reported no finite number"),
        (REPORT + "report(auc=0.95); report(auc=float('nan'))", AirflowFailException, "last reported no finite number"),
        (REPORT + "report(auc=0.9); report(auc=0.5); os._exit(0)", AirflowFailException, "an end before the last rep"),
        (
            REPORT + "report(auc=1)\nfor k in track(range(9)): report(auc=k); k > 3 and os._exit(0)",
            AirflowFailException,
            "an end bef",
        ),
        (SCRIPT + 'print(\'@paceline {"done": 1, "to\')', AirflowFailException, "a readable last report"),
    ],
)
def test_script_without_valid_score_fails_and_registers_nothing(
    evaluate: Task, registry: FileRegistry, tmp_path: Path, script: str, error: type[Exception], message: str
) -> None:
    (tmp_path / "bad.py").write_text(script)
    with pytest.raises(error, match=f"(?s){message}"):
        evaluate(0.7, script=str(tmp_path / "bad.py"))
    assert registry.versions("flights") == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"challenger": "/nowhere/model"}, "challenger: got '/nowhere/model', expected an existing folder"),
        ({"challenger": __file__}, "challenger: got '.*', expected an existing folder"),
        ({"data": {"holdout.csv": "/nowhere/x.csv"}}, r"^data\['holdout\.csv'\]: got '/nowhere/x\.csv'"),
        ({"script": "/nowhere/evaluate.py"}, "script: got '/nowhere/evaluate.py'"),
    ],
)
def test_missing_input_is_rejected_by_name_before_a_job_starts(
    evaluate: Task, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(AirflowFailException, match=message):
        evaluate(**{"challenger": 0.7, **arguments})


def test_empty_folder_is_no_challenger(evaluate: Task, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(AirflowFailException, match=r"challenger: got '.*/empty', expected .* \$PACELINE_OUTPUT"):
        evaluate(challenger=str(tmp_path / "empty"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": "../flights"}, "model: got '../flights'"),
        ({"data": {}}, "data: got {}, expected at least one"),
        ({"devices": "many"}, "devices: got 'many'"),
        ({"devices": 0}, "devices: got 0.0, expected a number of cores greater than 0"),
        ({"lineage": "drift"}, "lineage: got 'drift', expected a mapping"),
        ({"runtime": "podman"}, "runtime: got 'podman'"),
    ],
)
def test_invalid_arguments_are_rejected_when_the_dag_is_parsed(
    evaluate: Task, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        evaluate(**{"challenger": "/tmp", **arguments})
