"""Fixtures for all tests, and the rule for skipping tests.

A test marked ``docker`` needs a reachable engine (``DOCKER_HOST``, else the default socket) and the trainer image.
A test marked ``browser`` needs Chromium and the built pages. Without them, a test is skipped with the reason; with
``CI=true`` it fails instead, so that a pipeline cannot pass untested.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    import docker
    from xdist.remote import Producer

    from paceline.airflow.demo.airflow_process import AirflowProcess
    from tests.scheduling import AirflowFirst

# Airflow in this process must not touch the user's own installation. It reads its environment at import, so set the
# environment before the import of any test module.
for name in [name for name in os.environ if name.startswith("AIRFLOW_")]:
    del os.environ[name]
_WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")  # parallel test processes do not share a database
os.environ["AIRFLOW_HOME"] = str(Path(__file__).parents[1] / "build" / "tests" / f"airflow{_WORKER}")
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
# Parallel test processes compete for cores, so limit threads; torch's threads must not spin while they wait.
os.environ |= {"OPENBLAS_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}

PROJECT = Path(__file__).parents[1]
# Use the same examples in every run, on machines of any speed; `make soak` searches for new examples.
settings.register_profile("same", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("new", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile(os.environ.get("PACELINE_EXAMPLES", "same"))

TRAINER_IMAGE = os.environ.get("PACELINE_TRAINER_IMAGE", "paceline-trainer:latest")
DOCKER_HOST = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
PAGES = PROJECT / "plugins" / "static" / "pages.js"
_BEGAN_S = pytest.StashKey[float]()
_AIRFLOW = pytest.StashKey["AirflowProcess"]()
_NEED_AIRFLOW = pytest.StashKey[set[Path]]()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> AirflowFirst:
    """Schedule tests so that at most two test processes have an Airflow."""
    from tests.scheduling import AirflowFirst

    return AirflowFirst(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the files that need an Airflow first, because Airflow is stopped after the last of these files."""
    need = config.stash[_NEED_AIRFLOW] = {item.path for item in items if "airflow" in getattr(item, "fixturenames", ())}
    items.sort(key=lambda item: item.path not in need)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a ``docker`` or ``browser`` test without its requirements, before its fixtures are built."""
    in_file_order = item.config.getoption("minutes", None) is None  # not `python -m tests.soak`
    if in_file_order and _AIRFLOW in item.config.stash and item.path not in item.config.stash[_NEED_AIRFLOW]:
        item.config.stash[_AIRFLOW].stop()
    reason = _missing_docker(item.config) if item.get_closest_marker("docker") else ""
    if item.get_closest_marker("browser"):
        reason = reason or _missing_browser()
    if reason:
        pytest.skip(reason)
    item.stash[_BEGAN_S] = time.time()


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Ignore scripts and data of tests: doctest collection would import, and so run, every file."""
    return True if collection_path.suffix == ".py" and not collection_path.name.startswith("test_") else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add logs to a failure; with ``CI=true``, turn a skipped ``docker`` or ``browser`` test into a failure."""
    report = yield
    if report.failed:
        report.sections.extend(_collect_logs(item))
    needs = item.get_closest_marker("docker") or item.get_closest_marker("browser")
    if report.skipped and in_ci() and needs and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid}: with CI=true, a {needs.name} test must not be skipped. {reason}"
    return report


def in_ci() -> bool:
    """Return whether skipped ``docker`` and ``browser`` tests count as failures."""
    return os.environ.get("CI", "").lower() in ("1", "true")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show the slowest files, because files are the unit of work of the test processes."""
    seconds: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[report.nodeid.partition("::")[0]] += report.duration
    slowest = seconds.most_common(12)
    if slowest and slowest[0][1] >= 1:
        terminalreporter.section(f"slowest files, of {seconds.total():.0f} s in all")
        for name, took_s in slowest:
            terminalreporter.write_line(f"{took_s:7.1f} s  {name}")


def _collect_logs(item: pytest.Item) -> Iterator[tuple[str, str]]:
    """Yield titles and texts of the logs of a test's Airflow and containers."""
    import docker

    from paceline.errors import PacelineError
    from tests.failures import report_sections

    fixtures = getattr(item, "funcargs", {})
    airflow = fixtures.get("airflow")
    engine = docker.APIClient(base_url=DOCKER_HOST, version="auto") if item.get_closest_marker("docker") else None
    try:
        yield from report_sections(airflow, engine, item.stash.get(_BEGAN_S, time.time()))
    except (PacelineError, docker.errors.DockerException, OSError) as error:
        yield "logs not available", repr(error)  # the failure itself must still be shown
    finally:
        if engine is not None:
            engine.close()


@pytest.fixture(scope="session")
def airflow(
    tmp_path_factory: pytest.TempPathFactory, docker_host: str, pytestconfig: pytest.Config
) -> Iterator[AirflowProcess]:
    """Yield the Airflow of this test process, started for the first test that uses it and stopped after the last.

    A test writes its DAG to ``airflow.dags_folder`` under a unique name. Tasks use the engine of the tests; the
    connection ``airflow_api`` points to this Airflow.
    """
    from paceline.airflow.demo.airflow_process import AirflowProcess

    # The plugin is found twice: by the entry point of the environment, and in the folder. The long heartbeat timeout is
    # for tasks on an overloaded machine. Files are parsed again only when they change.
    config = {
        "core.plugins_folder": PROJECT / "plugins",
        "core.parallelism": 8,
        "scheduler.task_instance_heartbeat_timeout": 120,
        "scheduler.scheduler_idle_sleep_time": 1,
        "dag_processor.min_file_process_interval": 600,
    }
    home = tmp_path_factory.mktemp("airflow")
    running = AirflowProcess(home, users={"anna": "op"}, config=config, environment={"DOCKER_HOST": docker_host})
    connection = {
        "conn_type": "http", "host": "127.0.0.1", "port": running.port,
        "login": "admin", "password": running.passwords["admin"],
    }  # fmt: skip
    running.env["AIRFLOW_CONN_AIRFLOW_API"] = json.dumps(connection)
    with running:
        pytestconfig.stash[_AIRFLOW] = running
        yield running


@pytest.fixture
def project() -> Path:
    """Return the root of the repository, for tests that run the unchanged example DAGs."""
    return PROJECT


@pytest.fixture(scope="session")
def docker_host() -> str:
    """Return the address of the engine, as in ``DOCKER_HOST``."""
    return DOCKER_HOST


@pytest.fixture(scope="session")
def trainer_image() -> str:
    """Return the name of the trainer image, which exists if the test runs."""
    return TRAINER_IMAGE


@pytest.fixture(scope="session")
def docker_client(docker_host: str) -> Iterator[docker.APIClient]:
    """Yield a client of the engine, for tests marked ``docker`` only."""
    import docker

    client = docker.APIClient(base_url=docker_host, version="auto", timeout=60)
    yield client
    client.close()


@pytest.fixture
def process_runtime_root(tmp_path: Path) -> Path:
    """Return an empty folder for the jobs of a process runtime."""
    root = tmp_path / "jobs"
    root.mkdir()
    return root


_DOCKER_REASON = pytest.StashKey[str]()


def _missing_browser() -> str:
    if shutil.which("chromium") is None:
        return "chromium is not installed; on Debian: apt-get install chromium"
    return "" if PAGES.exists() else "the pages have not been built: make ui"


def _missing_docker(config: pytest.Config) -> str:
    """Return why Docker tests cannot run, or "" if they can; determined once per session."""
    if _DOCKER_REASON not in config.stash:
        config.stash[_DOCKER_REASON] = _probe_docker(DOCKER_HOST)
    return config.stash[_DOCKER_REASON]


def _probe_docker(host: str) -> str:
    import docker
    from docker.errors import DockerException, ImageNotFound

    try:
        client = docker.APIClient(base_url=host, version="auto", timeout=10)
        try:
            client.inspect_image(TRAINER_IMAGE)
        finally:
            client.close()
    except ImageNotFound:
        return f"the engine at {host} has no image {TRAINER_IMAGE}; `make image` builds it"
    except (DockerException, OSError) as error:
        return f"no Docker engine answers at {host} (set DOCKER_HOST to use another): {error}"
    return ""
