"""A real browser on a real Airflow: Chromium as the system has it, driven by Playwright."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from paceline.demo.airflow_process import AirflowProcess

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PROJECT = Path(__file__).parents[2]
AXE = PROJECT / "plugins" / "ui" / "node_modules" / "axe-core" / "axe.min.js"
PICTURES = Path(os.environ.get("PACELINE_PICTURES", PROJECT / "build" / "pictures"))
SCRIPT = PROJECT / "tests" / "integration" / "training" / "digits.py"
DAG = f"""
from airflow.sdk import DAG
from paceline.operators import DeadlineTrainingOperator

with DAG("pages", schedule=None, params={{"deadline": "60s", "batches": 600}}):
    DeadlineTrainingOperator(
        task_id="train",
        script={str(SCRIPT)!r},
        arguments=["--batches={{{{ params.batches }}}}", "--batch-size=64"],
        deadline="{{{{ params.deadline }}}}",
        deadline_from="task",
        runtime="process",
    )
"""


MANY = """
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG

with DAG("many", schedule=None):
    for number in range(50):
        EmptyOperator(task_id=f"train-{number}")
"""


@pytest.fixture(scope="session")
def airflow(tmp_path_factory: pytest.TempPathFactory, docker_host: str) -> Iterator[AirflowProcess]:
    """A running Airflow with the DAG ``pages``, which trains as a local process."""
    home = tmp_path_factory.mktemp("pages")
    (home / "dags").mkdir()
    (home / "dags" / "pages.py").write_text(DAG)
    (home / "dags" / "many.py").write_text(MANY)
    # The plugin is found twice: by the entry point of the environment, and in the folder.
    config = {"core.plugins_folder": PROJECT / "plugins"}
    environment = {"DOCKER_HOST": docker_host}
    with AirflowProcess(home, users={"anna": "op"}, config=config, environment=environment) as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium without a window. Ended with its module: its event loop would be in the way of other tests."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        running = playwright.chromium.launch(
            executable_path=shutil.which("chromium"),
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"],
        )
        yield running
        running.close()


Open = Callable[..., "Page"]
_PAGES = pytest.StashKey[list["Page"]]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Of a test that fails, tell what its pages said just then."""
    report = yield
    if report.when == "call" and report.failed:
        from playwright.sync_api import Error

        for page in item.stash.get(_PAGES, []):
            with contextlib.suppress(Error):  # of one that has crashed
                report.sections.append((f"what {page.url} said", page.locator("body").inner_text(timeout=2_000)))
    return report


@pytest.fixture
def open_page(request: pytest.FixtureRequest, browser: Browser, airflow: AirflowProcess) -> Iterator[Open]:
    """Open a page of Airflow as one of its users; an error in a page that nobody handles fails the test."""
    contexts = []
    pages = request.node.stash.setdefault(_PAGES, [])
    errors: list[str] = []

    def open_as(path: str, *, user: str = "admin", width: int = 1280, height: int = 1000, dark: bool = False) -> Page:
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light"
        )
        contexts.append(context)
        context.add_cookies([{"name": "_token", "value": airflow.token(user), "url": airflow.url}])
        theme = "dark" if dark else "light"
        context.add_init_script(f"if (location.protocol == 'http:') localStorage.setItem('theme', '{theme}')")
        page = context.new_page()
        pages.append(page)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(f"{airflow.url}{path}")
        return page

    yield open_as
    for context in contexts:
        context.close()
    # A page that is left while it asks for something is told so: nothing is wrong with it.
    assert [error for error in errors if "Failed to fetch" not in error] == []


@pytest.fixture
def serious() -> Callable[[Page], list[str]]:
    """What axe finds on our part of a page that is serious or worse."""

    def find(page: Page) -> list[str]:
        page.add_script_tag(path=AXE)
        found = page.evaluate("axe.run('.paceline').then(result => result.violations)")
        return [
            f"{one['id']}: {one['help']} {[node['html'][:200] for node in one['nodes'][:3]]}"
            for one in found
            if one["impact"] in ("serious", "critical")
        ]

    return find


@pytest.fixture(scope="session")
def pictures() -> Path:
    """Where screenshots are kept."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    return PICTURES
