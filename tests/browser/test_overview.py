"""The pages show models and drift reports that the real operators wrote, with a real registry."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock
from urllib.parse import unquote, urlencode

import numpy as np
import pandas as pd
import pytest
from demo.airflow_process import AirflowProcess
from tests.recorded import RecordedRun

from paceline.contract import DRIFT_XCOM, EVALUATION_XCOM, QUANTILES, EvaluationResult, Improvements
from paceline.drift import compare
from paceline.operators import EvaluateOperator, PromoteOperator
from paceline.operators.links import ModelLink
from paceline.registry import FileRegistry

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

pytestmark = [pytest.mark.airflow, pytest.mark.browser, pytest.mark.timeout(300)]
OpenPage = Callable[..., "Page"]
Violations = Callable[["Page"], list[str]]
DAG = """
from airflow.sdk import DAG
from paceline.operators import EvaluateOperator, PromoteOperator
from paceline.sensors import DriftSensor

with DAG("retrain_flights", schedule=None):
    drift = DriftSensor(task_id="drift", reference="reference.csv", current="current.csv", on_no_drift="succeed")
    evaluate = EvaluateOperator(
        task_id="evaluate", model="flights", registry="/models", challenger="model",
        data={"holdout.csv": "holdout.csv"}, command="python -m app.score", metric="auc",
    )
    drift >> evaluate >> PromoteOperator(task_id="promote", registry="/models", evaluation=evaluate.output)
"""


def make_flight_data(mean: float, carriers: str, seed: int) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    temperature, humidity = random.normal(mean, 5, 2000), random.normal(60, 15, 2000)
    carrier = random.choice(list(carriers), 2000)
    return pd.DataFrame({"temperature": temperature.round(1), "humidity": humidity.round(), "carrier": carrier})


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> FileRegistry:
    return FileRegistry(tmp_path_factory.mktemp("retrain_flights") / "registry")


@pytest.fixture(scope="module")
def run_ids(airflow: AirflowProcess, registry: FileRegistry) -> list[str]:
    """Return the ids of two recorded runs. The first has drift and a promotion, the second has neither."""
    (airflow.dags_folder / "retrain_flights.py").write_text(DAG)
    folder = Path(registry.root.path).parent
    (folder / "model").mkdir()
    (folder / "model" / "weights").write_text("0")
    reference = make_flight_data(12, "AABBCD", seed=2)
    runs = []
    for mean, carriers, auc, champion_auc in ((17, "ABBBCE", 0.70, 0.0), (12, "AABBCD", 0.69, 0.695)):
        run = RecordedRun(airflow, "retrain_flights")
        runs.append(run.run_id)
        ended = run.began + timedelta(seconds=9)
        current = make_flight_data(mean, carriers, seed=12)
        report = compare(reference, current, reference_name="last-year.csv", current_name="today.csv")
        evaluation = evaluate_challenger(registry, folder / "model", auc, champion_auc, run)
        promote = PromoteOperator(task_id="promote", registry=str(registry.root), evaluation=evaluation)
        ti = Mock(xcom_push=partial(run.put_xcom, "promote"))
        promotion = promote.execute({"ti": ti})  # type: ignore[typeddict-item]
        run.put_xcom("drift", report.to_dict(), key="report")
        run.put_xcom("drift", True, key=DRIFT_XCOM)
        run.put_xcom("evaluate", True, key=EVALUATION_XCOM)
        for task_id, result in (
            ("drift", report.summary().to_json()),
            ("evaluate", evaluation),
            ("promote", promotion),
        ):
            run.put_task(task_id, "success", ended=ended)
            run.put_xcom(task_id, result)
        link: Any = ModelLink()
        run.put_xcom("promote", link.get_link(promote, ti_key=None), key=link.xcom_key)
        run.put_state("success", ended)
    run.pause(False)
    return runs


def evaluate_challenger(
    registry: FileRegistry, model: Path, auc: float, champion_auc: float, run: RecordedRun
) -> dict[str, Any]:
    """Register a challenger, and return the result of its evaluation with these scores on the same data."""
    evaluate = EvaluateOperator(
        task_id="evaluate", model="flights", registry=str(registry.root), challenger=str(model),
        data={"holdout.csv": "holdout.csv"}, command="python -m app.score", metric="auc",
    )  # fmt: skip
    champion = registry.champion("flights")
    verdict = evaluate._compare({"auc": auc}, {"auc": champion_auc} if champion else None, champion)
    lineage = {"dag_id": run.dag_id, "run_id": run.run_id, "data_until": run.began.isoformat(), "report": "today.html"}
    window = {"source": "SELECT * FROM flights WHERE day < :day", "parameters": {"day": "2030-01-31"}}
    version = registry.register(
        model, name="flights", metrics={"auc": auc, "log_loss": 0.5}, lineage=lineage, data_window=window
    )
    improvements = Improvements(
        rows=2000,
        resamples=1000,
        pairs=1000,
        interval=[-0.021, 0.012],
        quantiles=[-0.005] * QUANTILES,
        unseen_share=0.1,
    )
    return EvaluationResult(
        model="flights", registry=str(registry.root), version=version.version, digest=version.digest,
        improvements=improvements if champion else None, **dict(verdict),
    ).to_json()  # fmt: skip


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_run_page_shows_the_drift_report(
    run_ids: list[str], open_page: OpenPage, violations: Violations, pictures: Path, theme: str
) -> None:
    page = open_page(f"/dags/retrain_flights/runs/{run_ids[0]}/plugin/pace", dark=theme == "dark")
    report = page.get_by_role("region", name="Drift report of drift")
    report.get_by_role("heading", name="temperature").last.wait_for()  # below the data quality problems
    assert report.get_by_text(re.compile("▲ drift")).count() == 3, "overall, temperature and carrier"
    label = report.get_by_label("Distribution of temperature").get_attribute("aria-label")
    assert label is not None
    assert re.search("most different at .* reference .* %, current .* %", label)
    report.get_by_text("A", exact=True).wait_for()  # a carrier, below its bar
    assert report.get_by_text(re.compile(r"effect .* \(threshold 0.1\)")).count() == 3
    report.screenshot(path=pictures / f"drift-{theme}.png")
    assert violations(page) == []

    with page.expect_response(re.compile("xcomEntries")):
        page.goto(page.url.replace("/plugin/pace", "/tasks/evaluate/plugin/task-pace"))
    page.get_by_text(re.compile("This task has no training job")).wait_for()
    assert page.get_by_role("region", name=re.compile("Drift report")).count() == 0


def cells_of(model: Any) -> list[list[str]]:
    """Return the texts of a model's evaluations, without their times."""

    def text_of(cell: str) -> str:
        return re.sub(r"^.*\d\d:\d\d:\d\d ", "", " ".join(cell.split())).replace("\N{MINUS SIGN}", "-")

    rows = model.get_by_role("table").get_by_role("row").all()[1:]
    return [[text_of(cell) for cell in row.get_by_role("cell").all_inner_texts()] for row in rows]


def test_promotion_links_to_its_model_with_evaluations_and_last_drift_check(
    airflow: AirflowProcess, run_ids: list[str], open_page: OpenPage, violations: Violations
) -> None:
    links = airflow.api("GET", f"/dags/retrain_flights/dagRuns/{run_ids[0]}/taskInstances/promote/links")["extra_links"]
    page = open_page(links["Model"])
    model = page.get_by_role("region", name="Model flights")
    model.get_by_text("champion: version 1").wait_for()
    assert cells_of(model) == [
        ["kept version 1 not better", "0.6950 version 1", "0.6900 version 2", "-0.005 -0.021 to +0.012"],
        ["promoted first", "no champion yet", "0.7000 version 1 champion now", "nothing to compare"],
    ]
    assert violations(page) == []
    model.get_by_role("link", name=re.compile("No drift")).click()
    page.get_by_role("region", name="Drift report of drift").wait_for()
    assert unquote(page.url).endswith(f"/dags/retrain_flights/runs/{run_ids[1]}")


def test_promotion_by_hand_is_the_champion_on_the_page(
    registry: FileRegistry, run_ids: list[str], open_page: OpenPage, violations: Violations, pictures: Path
) -> None:
    page = open_page("/plugin/retraining/models")
    model = page.get_by_role("region", name="Model flights")
    model.get_by_text(re.compile(r"According to the registry \(read .*: promoted")).wait_for()
    registry.promote("flights", 2, "wrong on Sundays", hold=True)
    model.get_by_text("champion: version 2").wait_for()  # the page asks again
    model.get_by_text(re.compile(r"held by a person\. Reason: wrong on Sundays")).wait_for()
    assert cells_of(model)[0][2].endswith("champion now")
    for theme in ("light", "dark"):
        for width in (600, 1400):
            tomorrow = datetime.now(timezone.utc) + timedelta(days=1)  # the page then shows days, too
            page = open_page("/plugin/retraining/models", width=width, dark=theme == "dark", at=tomorrow)
            page.get_by_role("region", name="Model flights").get_by_text("champion: version 2").wait_for()
            table = page.get_by_role("table", name="Evaluations of flights")
            assert table.evaluate("table => table.parentElement.scrollWidth <= table.parentElement.clientWidth")
            rows = table.get_by_role("row").evaluate_all(
                "rows => rows.map(row => getComputedStyle(row).backgroundColor)"
            )
            assert set(rows) == {"rgba(0, 0, 0, 0)"}, "the table has the colour of its card"
            assert violations(page) == []
            page.get_by_role("tabpanel", name="Models").screenshot(path=pictures / f"models-{theme}-{width}.png")


def test_rollback_on_the_page_of_a_model_needs_the_right_and_a_reason(
    airflow: AirflowProcess,
    registry: FileRegistry,
    run_ids: list[str],
    open_page: OpenPage,
    violations: Violations,
    pictures: Path,
) -> None:
    registry.promote("flights", 2, "better in winter")
    page = open_page("/plugin/retraining/models", user="viewer")
    model = page.get_by_role("region", name="Model flights")
    model.get_by_role("link", name="All versions, rollback").click()
    page.get_by_text("To change the champion, you need permission").wait_for()
    assert page.get_by_role("button", name="Roll back").count() == 0
    path = page.url.removeprefix(airflow.url)

    for theme in ("light", "dark"):
        for width in (600, 1400):
            tomorrow = datetime.now(timezone.utc) + timedelta(days=1)  # the page then shows days, too
            page = open_page(path, user="anna", width=width, dark=theme == "dark", at=tomorrow)
            table = page.get_by_role("table", name="Versions of flights")
            table.get_by_text("champion", exact=True).wait_for()
            assert table.evaluate("table => table.parentElement.scrollWidth <= table.parentElement.clientWidth")
            assert violations(page) == []
            page.screenshot(path=pictures / f"model-{theme}-{width}.png", full_page=True)
            page.get_by_role("button", name="Roll back").click()
            dialog = page.get_by_role("alertdialog", name="Make version 1 of flights the champion?")
            dialog.get_by_text("use version 1 instead of version 2").wait_for()
            page.wait_for_function("document.getAnimations().every(one => one.playState != 'running')")
            assert violations(page) == []
            page.screenshot(path=pictures / f"rollback-{theme}-{width}.png")
    confirm = dialog.get_by_role("button", name="Make version 1 the champion")
    assert confirm.is_disabled(), "a change needs a reason"
    dialog.get_by_label("Reason").fill("wrong on Sundays")
    confirm.click()
    page.get_by_text("Version 1 is the champion now, instead of version 2. Tasks do not replace it").wait_for()
    champion = registry.last_promotion("flights")
    assert champion is not None
    assert (champion.version, champion.reason, champion.hold) == (1, "wrong on Sundays (anna)", True)
    page.get_by_role("table", name="Changes of the champion").get_by_text("wrong on Sundays (anna)").wait_for()
    (entry,) = airflow.api("GET", "/eventLogs", event="paceline.champion")["event_logs"]
    assert (entry["owner"], "wrong on Sundays" in entry["extra"]) == ("anna", True)

    page.get_by_role("button", name="Release").click()
    page.get_by_label("Reason").fill("Sundays are fixed")
    page.get_by_role("button", name="Release", exact=True).click()
    page.get_by_text("Tasks may replace it").wait_for()
    assert not registry.history("flights")[-1].hold


def test_champion_is_changed_with_the_keyboard(run_ids: list[str], registry: FileRegistry, open_page: OpenPage) -> None:
    from playwright.sync_api import expect

    page = open_page(model_path(registry), user="anna")
    opener = page.get_by_role("button", name="Promote …")
    opener.press("Enter")
    dialog = page.get_by_role("alertdialog", name="Make version 2 of flights the champion?")
    reason, hold = dialog.get_by_label("Reason"), dialog.get_by_role("checkbox")
    expect(reason).to_be_focused()
    for place in (hold, dialog.get_by_role("button", name="Cancel"), reason):  # a change needs a reason
        page.keyboard.press("Tab")
        expect(place).to_be_focused()
    reason.press_sequentially("better")
    page.keyboard.press("Shift+Tab")
    expect(dialog.get_by_role("button", name="Make version 2 the champion")).to_be_focused()
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(opener).to_be_focused()


def test_versions_have_names_of_their_own_and_long_names_of_dags_wrap(
    run_ids: list[str], registry: FileRegistry, open_page: OpenPage
) -> None:
    def lengthen(route: Route) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, body=answer.text().replace("retrain_flights", "retrain_flights" * 6))

    page = open_page("/home", width=600)
    page.route("**/paceline/api/model?*", lengthen)
    page.goto(page.url.replace("/home", model_path(registry)))
    table = page.get_by_role("table", name="Versions of flights")
    for version in (1, 2):
        table.get_by_role("checkbox", name=f"compare version {version}").press("Space")
    page.get_by_role("button", name="Compare 2 runs").wait_for()
    assert table.evaluate("table => table.parentElement.scrollWidth <= table.parentElement.clientWidth")


def model_path(registry: FileRegistry) -> str:
    """Return the path of the page of the model ``flights``."""
    return f"/plugin/retraining/model?{urlencode({'model': 'flights', 'registry': str(registry.root)})}"
