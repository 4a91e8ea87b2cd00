"""Fixtures for tests of the pages of a real Airflow in the system's Chromium, which Playwright drives."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Generator, Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from demo.airflow_process import AirflowProcess

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

PROJECT = Path(__file__).parents[2]
AXE = PROJECT / "plugins" / "ui" / "node_modules" / "axe-core" / "axe.min.js"
PICTURES = Path(os.environ.get("PACELINE_PICTURES", PROJECT / "build" / "pictures"))
TIMEOUT_MS = 90_000  # ten times the load time of the slowest page


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Yield a headless Chromium, closed after each module because Playwright's event loop would disturb other tests."""
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=TIMEOUT_MS)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=shutil.which("chromium"),
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"],
        )
        yield chromium
        chromium.close()


OpenPage = Callable[..., "Page"]
_PAGES = pytest.StashKey[list["Page"]]()
# Hide the server's clock from a page whose own clock a test has set.
_NO_DATE = """{
  const get = Headers.prototype.get
  Headers.prototype.get = function (name) { return name.toLowerCase() === "date" ? null : get.call(this, name) }
}"""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the text of the open pages to the report of a failed test."""
    report = yield
    if report.when == "call" and report.failed:
        from playwright.sync_api import Error

        for page in item.stash.get(_PAGES, []):
            with contextlib.suppress(Error):  # the page has crashed
                report.sections.append((f"text of {page.url}", page.locator("body").inner_text(timeout=2_000)))
    return report


@pytest.fixture(scope="module")
def browser_context(browser: Browser, airflow: AirflowProcess) -> Callable[[str, bool], BrowserContext]:
    """Return a function that returns the browser context for a user and a theme, cached so that scripts load once."""
    contexts: dict[tuple[str, bool], BrowserContext] = {}

    def get_context(user: str, dark: bool) -> BrowserContext:
        if (user, dark) not in contexts:
            theme = "dark" if dark else "light"
            context = contexts[user, dark] = browser.new_context(color_scheme="dark" if dark else "light")
            context.set_default_timeout(TIMEOUT_MS)
            context.add_cookies([{"name": "_token", "value": airflow.token(user), "url": airflow.url}])
            context.add_init_script(f"if (location.protocol == 'http:') localStorage.setItem('theme', '{theme}')")
        return contexts[user, dark]

    return get_context


@pytest.fixture
def open_page(
    request: pytest.FixtureRequest, browser_context: Callable[[str, bool], BrowserContext], airflow: AirflowProcess
) -> Iterator[OpenPage]:
    """Return a function that opens a page as an Airflow user. An unhandled error in a page fails the test."""
    pages = request.node.stash.setdefault(_PAGES, [])
    errors: list[str] = []

    def open_page_as(
        path: str,
        *,
        user: str = "admin",
        width: int = 1280,
        height: int = 1000,
        dark: bool = False,
        at: datetime | None = None,
    ) -> Page:
        page = browser_context(user, dark).new_page()
        pages.append(page)
        if at is not None:  # so that the newest sample of a recorded run is recent
            page.clock.set_fixed_time(at)
            page.add_init_script(_NO_DATE)
        page.set_viewport_size({"width": width, "height": height})
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(f"{airflow.url}{path}")
        return page

    yield open_page_as
    for page in pages:
        page.close()
    # Closing a page during a request causes this harmless error.
    assert [error for error in errors if "Failed to fetch" not in error] == []


@pytest.fixture
def violations() -> Callable[[Page], list[str]]:
    """Return a function that lists the serious and critical accessibility violations that axe finds on our page."""

    def find_violations(page: Page) -> list[str]:
        page.add_script_tag(path=AXE)
        violations = page.evaluate("axe.run('.paceline').then(result => result.violations)")
        return [
            f"{violation['id']}: {violation['help']} {[node['html'][:200] for node in violation['nodes'][:3]]}"
            for violation in violations
            if violation["impact"] in ("serious", "critical")
        ]

    return find_violations


@pytest.fixture(scope="session")
def pictures() -> Path:
    """Return the folder for screenshots, and create it if necessary."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    return PICTURES
