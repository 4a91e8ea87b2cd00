"""Fixtures for all tests, and the rule for skipping tests.

A test marked ``docker`` needs a reachable engine (``DOCKER_HOST``, else the default socket) and the trainer image.
A test marked ``kubernetes`` needs a cluster (``KUBECONFIG``) whose nodes have that image and the neighbours', for
example of kind or k3s. A test of two clusters also needs the second one (``PACELINE_SECOND_KUBECONFIG``), whose nodes
have the trainer image and whose pods reach those of the first. A test marked ``browser`` needs Chromium and the built
pages; a test marked ``mlflow`` needs an installed MLflow. A test that lacks them is skipped with the reason. With
``CI=true``, the test fails instead, so that a pipeline cannot pass without these tests.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import time
import uuid
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    import docker
    from demo.airflow_process import AirflowProcess
    from kubernetes.client import ApiClient
    from xdist.remote import Producer

    from tests.scheduling import AirflowFirst

# Airflow in this process must not touch the user's installation. Airflow reads the environment when it is imported,
# so set the environment before any test module is imported.
for name in [name for name in os.environ if name.startswith("AIRFLOW_")]:
    del os.environ[name]
_WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")  # parallel test processes do not share a database
os.environ["AIRFLOW_HOME"] = str(Path(__file__).parents[1] / "build" / "tests" / f"airflow{_WORKER}")
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
os.environ["AIRFLOW__PACELINE__ALLOWED_RUNTIMES"] = "docker,kubernetes,process"  # also as root, as CI runs
# Parallel test processes compete for cores, so limit the threads, and do not let waiting threads of torch spin.
os.environ |= {"OPENBLAS_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}

PROJECT = Path(__file__).parents[1]
# Use the same Hypothesis examples in every run, at any machine speed. `make soak` generates new examples.
settings.register_profile("same", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("new", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile(os.environ.get("PACELINE_EXAMPLES", "same"))

TRAINER_IMAGE = os.environ.get("PACELINE_TRAINER_IMAGE", "paceline-trainer:latest")
DOCKER_HOST = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
PAGES = PROJECT / "plugins" / "static" / "pages.js"
MLFLOW = PROJECT / "build" / "mlflow" / "bin" / "mlflow"
_BEGAN_S = pytest.StashKey[float]()
_AIRFLOW = pytest.StashKey["AirflowProcess"]()
_AIRFLOW_FILES = pytest.StashKey[set[Path]]()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> AirflowFirst:
    """Schedule tests so that at most two test processes start an Airflow."""
    from tests.scheduling import AirflowFirst

    return AirflowFirst(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run the files that need an Airflow first, because Airflow is stopped after the last of these files."""
    airflow_files = config.stash[_AIRFLOW_FILES] = {
        item.path for item in items if "airflow" in getattr(item, "fixturenames", ())
    }
    items.sort(key=lambda item: item.path not in airflow_files)


def pytest_collection_finish() -> None:
    """Exempt the million objects of imported modules and collected tests from garbage collection.

    They live until the end. Each full collection, and each search for loaders and iterators at the start of a training
    loop, would visit them.
    """
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a ``docker`` or ``browser`` test with missing requirements before its fixtures are set up."""
    in_file_order = item.config.getoption("minutes", None) is None  # not `python -m tests.soak`
    if in_file_order and _AIRFLOW in item.config.stash and item.path not in item.config.stash[_AIRFLOW_FILES]:
        item.config.stash[_AIRFLOW].stop()
    reason = _why_no_docker(item.config) if item.get_closest_marker("docker") else ""
    if item.get_closest_marker("browser"):
        reason = reason or _why_no_browser()
    if item.get_closest_marker("mlflow") and not MLFLOW.exists():
        reason = reason or "MLflow is not installed; run: make mlflow"
    if item.get_closest_marker("kubernetes"):
        reason = reason or _why_no_cluster()
    if reason:
        pytest.skip(reason)
    item.stash[_BEGAN_S] = time.time()


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Ignore scripts that are not test modules, because doctest collection would import and so run them."""
    return True if collection_path.suffix == ".py" and not collection_path.name.startswith("test_") else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add logs to a failure's report. With ``CI=true``, report a skipped test with such a mark as failed."""
    report = yield
    if report.failed:
        report.sections.extend(_collect_logs(item))
    required = ("docker", "browser", "mlflow", *(["kubernetes"] if os.environ.get("KUBECONFIG") else []))
    needs = next(filter(None, map(item.get_closest_marker, required)), None)
    if report.skipped and in_ci() and needs and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid}: with CI=true, a {needs.name} test must not be skipped. {reason}"
    return report


def in_ci() -> bool:
    """Return whether skipped tests with a mark for their needs count as failures."""
    return os.environ.get("CI", "").lower() in ("1", "true")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show the slowest files, because each file runs in one test process."""
    seconds: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[report.nodeid.partition("::")[0]] += report.duration
    slowest = seconds.most_common(12)
    if slowest and slowest[0][1] >= 1:
        terminalreporter.section(f"slowest files, out of {seconds.total():.0f} s in total")
        for name, took_s in slowest:
            terminalreporter.write_line(f"{took_s:7.1f} s  {name}")


def _collect_logs(item: pytest.Item) -> Iterator[tuple[str, str]]:
    """Yield the title and text of each log of the test's Airflow and containers."""
    import docker

    from paceline.errors import PacelineError
    from tests.failures import report_sections

    fixtures = getattr(item, "funcargs", {})
    airflow = fixtures.get("airflow")
    engine = docker.APIClient(base_url=DOCKER_HOST, version="auto") if item.get_closest_marker("docker") else None
    try:
        yield from report_sections(airflow, engine, item.stash.get(_BEGAN_S, time.time()))
    except (PacelineError, docker.errors.DockerException, OSError) as error:
        yield "logs not available", repr(error)  # still show the test's failure
    finally:
        if engine is not None:
            engine.close()


@pytest.fixture(scope="session")
def airflow(
    tmp_path_factory: pytest.TempPathFactory, docker_host: str, pytestconfig: pytest.Config
) -> Iterator[AirflowProcess]:
    """Yield the Airflow of this test process, started before the first test that needs it and stopped after the last.

    A test writes its DAG to ``airflow.dags_folder`` under a unique name. Tasks use the same engine as the tests. The
    connection ``airflow_api`` points to this Airflow.
    """
    from demo.airflow_process import AirflowProcess

    # Airflow finds the plugin twice: by its entry point, and in the plugins folder. The long heartbeat timeout is for
    # tasks on an overloaded machine. Airflow parses a file again only when the file changes.
    config = {
        "core.plugins_folder": PROJECT / "plugins",
        "core.parallelism": 8,
        "paceline.allowed_runtimes": os.environ["AIRFLOW__PACELINE__ALLOWED_RUNTIMES"],
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
    """Return the root of the repository, for tests that run the example DAGs."""
    return PROJECT


@pytest.fixture(scope="session")
def docker_host() -> str:
    """Return the address of the engine, as in ``DOCKER_HOST``."""
    return DOCKER_HOST


@pytest.fixture(scope="session")
def trainer_image() -> str:
    """Return the name of the trainer image. Tests marked ``docker`` are skipped if the image does not exist."""
    return TRAINER_IMAGE


@pytest.fixture(scope="session")
def docker_client(docker_host: str) -> Iterator[docker.APIClient]:
    """Yield a client of the engine, only for tests marked ``docker``."""
    import docker

    client = docker.APIClient(base_url=docker_host, version="auto", timeout=60)
    yield client
    client.close()


@pytest.fixture
def namespace() -> Iterator[str]:
    """Yield a new namespace of the cluster, which enforces the restricted Pod Security Standard."""
    from kubernetes.client import CoreV1Api

    core, name = CoreV1Api(connect_cluster()), f"test-{uuid.uuid4().hex[:12]}"
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    core.create_namespace({"metadata": {"name": name, "labels": labels}})
    yield name
    core.delete_namespace(name)


def connect_cluster(config: str | None = None) -> ApiClient:
    """Return a client of the cluster that a file names, by default the file ``KUBECONFIG``."""
    from kubernetes.config import new_client_from_config

    return new_client_from_config(config)


@pytest.fixture
def process_runtime_root(tmp_path: Path) -> Path:
    """Return an empty folder for the jobs of a process runtime."""
    root = tmp_path / "jobs"
    root.mkdir()
    return root


_DOCKER_REASON = pytest.StashKey[str]()


def _why_no_browser() -> str:
    if shutil.which("chromium") is None:
        return "chromium is not installed; on Debian: apt-get install chromium"
    return "" if PAGES.exists() else "the pages have not been built: make ui"


def _why_no_docker(config: pytest.Config) -> str:
    """Return why Docker tests cannot run, or "" if they can. Probe the engine once per test session."""
    if _DOCKER_REASON not in config.stash:
        config.stash[_DOCKER_REASON] = _probe_docker(DOCKER_HOST)
    return config.stash[_DOCKER_REASON]


def _why_no_cluster() -> str:
    """Return why tests with a cluster cannot run, or "" if they can. With ``KUBECONFIG``, a test has to run."""
    if not os.environ.get("KUBECONFIG"):
        return "KUBECONFIG names no cluster; `kind create cluster` starts one"
    return ""


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
        return f"no Docker engine responds at {host} (set DOCKER_HOST to use another): {error}"
    return ""
