"""Runs a private Airflow: scheduler, DAG processor, triggerer and API server as child processes on loopback.

Used by ``make demo``, ``make up`` and the integration tests. Each Airflow has its own home folder, database and port.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType

import httpx

from demo.signals import end_on_sigterm, signals_deferred
from paceline.airflow.api import AirflowApi
from paceline.errors import PacelineError

# Airflow's log server would listen on all interfaces. All processes read the same log folder, so none needs the server.
_COMPONENTS: Mapping[str, Sequence[str]] = {
    "api-server": ("api-server",),
    "scheduler": ("scheduler", "--skip-serve-logs"),
    "dag-processor": ("dag-processor",),
    "triggerer": ("triggerer", "--skip-serve-logs"),
}
# `python -m airflow` would put the current folder first on the path; a folder in ``home`` could shadow a package.
_AIRFLOW_COMMAND = (sys.executable, str(Path(sysconfig.get_path("scripts")) / "airflow"))
_USERS = {"admin": "admin", "viewer": "viewer"}
_DATABASE = "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"
# Seconds that a component waits for SQLite's lock. Airflow's API server commits its audit log on its event loop. If a
# request holds the lock, this commit waits for the request, and the request waits for the event loop. A short timeout
# ends this deadlock in the API server, whose clients retry. The scheduler exits on a timeout, so its timeout is long.
_LOCK_TIMEOUT = "timeout=60"
_API_SERVER_LOCK_TIMEOUT = "timeout=2"


class AirflowStartError(PacelineError):
    """Raised when Airflow does not start. The message ends with the last log lines of the failed component."""


class AirflowProcess(AirflowApi):
    """A real Airflow in one folder, running for the duration of a ``with`` block.

    Parameters
    ----------
    home:
        Folder for the database, logs and passwords, and by default the DAG files in ``dags/``. Created if missing.
    dags_folder:
        Folder with the DAG files.
    config:
        Additional or changed Airflow settings, as ``{"section.key": value}``.
    environment:
        Additional environment variables for every process. Inherited ``AIRFLOW_*`` variables are dropped.
    port:
        Port of the API server on 127.0.0.1; by default any free port.
    users:
        Additional users of the simple auth manager, as ``{name: role}``, besides ``admin`` and ``viewer``.

    Attributes
    ----------
    env:
        The environment variables of every component and every ``airflow`` command.
    passwords:
        Mapping of user names to passwords, also stored in ``home/passwords.json``, which only its owner can read.
    processes:
        Mapping of component names to running processes.

    Examples
    --------
    >>> with AirflowProcess(tmp) as airflow:  # doctest: +SKIP
    ...     run_id = airflow.run_dag("retrain_on_drift", {"deadline": "PT2M"})
    ...     airflow.wait("retrain_on_drift", run_id, timeout_s=300)
    'success'
    """

    def __init__(
        self,
        home: Path,
        *,
        dags_folder: Path | None = None,
        config: Mapping[str, object] | None = None,
        environment: Mapping[str, str] | None = None,
        port: int | None = None,
        users: Mapping[str, str] | None = None,
    ) -> None:
        self.home = Path(home).absolute()
        self.dags_folder = Path(dags_folder).absolute() if dags_folder else self.home / "dags"
        self.port = port or free_port()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        roles = {**_USERS, **(users or {})}
        self.home.mkdir(parents=True, exist_ok=True)
        self.dags_folder.mkdir(parents=True, exist_ok=True)
        super().__init__(f"http://127.0.0.1:{self.port}", self._passwords(roles))
        self.env = self._environment(roles, config or {}, environment or {})

    def start(self, timeout_s: float = 600.0) -> AirflowProcess:
        """Migrate the database, start every component and wait until all are healthy.

        Stops all components and raises ``AirflowStartError`` on a timeout, or immediately if a component exits. The
        default timeout is long because startup can take minutes on a busy machine.
        """
        (self.home / "logs").mkdir(exist_ok=True)
        atexit.register(self.stop)
        end_on_sigterm()
        try:
            migration = self.cli("db", "migrate", timeout_s=timeout_s)
            if migration.returncode != 0:
                raise AirflowStartError(f"airflow db migrate failed:\n{migration.stdout[-2000:]}")
            for name, arguments in _COMPONENTS.items():
                self.start_component(name, arguments)
            self._wait_until_healthy(timeout_s)
        except BaseException:
            self.stop()
            raise
        return self

    def start_component(
        self, name: str, arguments: Sequence[str] | None = None, environment: Mapping[str, str] | None = None
    ) -> None:
        """Start a standard or an additional component. A test may call this after it has killed a component.

        An additional component, such as an edge worker, needs ``arguments``. ``environment`` adds variables.
        """
        own_environment = {}
        if name == "api-server":
            own_environment[_DATABASE] = self.env[_DATABASE].replace(_LOCK_TIMEOUT, _API_SERVER_LOCK_TIMEOUT)
        with self.log_path(name).open("ab") as log, signals_deferred():
            # In its own session, a component receives no SIGINT from Ctrl-C; this process stops the components instead.
            self.processes[name] = subprocess.Popen(
                [*_AIRFLOW_COMMAND, *(arguments or _COMPONENTS[name])],
                env={**self.env, **own_environment, **(environment or {})},
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def stop(self, grace_s: float = 5.0) -> None:
        """Send SIGTERM to every component, and kill its process group after ``grace_s`` seconds. Idempotent."""
        atexit.unregister(self.stop)
        running = [process for process in self.processes.values() if process.poll() is None]
        for process in running:
            process.terminate()
        end = time.monotonic() + grace_s
        for process in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, end - time.monotonic()))
        for process in self.processes.values():
            # Child processes may outlive their executor, so always kill the process group.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self.processes.clear()
        end = time.monotonic() + grace_s
        while (remaining := list(self._task_pids())) and time.monotonic() < end:  # tasks need time to stop their jobs
            time.sleep(0.05)
        for pid in remaining:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _task_pids(self) -> Iterator[int]:
        """Yield the ids of task processes: each leads its own group, which signals to the components do not reach."""
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                is_ours = (process / "cwd").readlink().is_relative_to(self.home.resolve())
                if is_ours and (process / "cmdline").read_bytes().startswith(b"airflow worker"):
                    yield int(process.name)

    def cli(self, *arguments: str, timeout_s: float = 120.0) -> subprocess.CompletedProcess[str]:
        """Run an ``airflow`` command against this Airflow. ``stdout`` of the result contains both output streams."""
        return subprocess.run(
            [*_AIRFLOW_COMMAND, *arguments],
            env=self.env,
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def log_path(self, component: str) -> Path:
        """Return the log file of a component."""
        return self.home / "logs" / f"{component}.log"

    def __enter__(self) -> AirflowProcess:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _passwords(self, roles: Mapping[str, str]) -> dict[str, str]:
        path = self.home / "passwords.json"
        known: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}
        passwords = {name: known.get(name) or secrets.token_urlsafe(12) for name in roles}
        _write_private(path, json.dumps(passwords))
        return passwords

    def _secret(self, name: str, make: Callable[[], str]) -> str:
        """Read a secret from its file, or create the file. The database needs the same secret at every start."""
        path = self.home / f"{name}.secret"
        if not path.exists():
            _write_private(path, make())
        return path.read_text()

    def _environment(
        self, roles: Mapping[str, str], config: Mapping[str, object], environment: Mapping[str, str]
    ) -> dict[str, str]:
        settings: dict[str, object] = {
            "core.dags_folder": self.dags_folder,
            "core.load_examples": False,
            "core.executor": "LocalExecutor",
            "core.parallelism": 4,
            "core.execution_api_server_url": f"{self.url}/execution/",
            "core.simple_auth_manager_users": ",".join(f"{name}:{role}" for name, role in roles.items()),
            "core.simple_auth_manager_passwords_file": self.home / "passwords.json",
            "core.fernet_key": self._secret("fernet_key", lambda: urlsafe_b64encode(secrets.token_bytes(32)).decode()),
            "core.min_serialized_dag_update_interval": 0,
            "database.sql_alchemy_conn": f"sqlite:///{self.home / 'airflow.db'}?{_LOCK_TIMEOUT}",
            "workers.execution_api_timeout": 30,
            "api.host": "127.0.0.1",
            "api.port": self.port,
            "api.base_url": self.url,
            "api.workers": 1,
            "api.secret_key": self._secret("secret_key", lambda: secrets.token_urlsafe(64)),
            "api_auth.jwt_secret": self._secret("jwt_secret", lambda: secrets.token_urlsafe(64)),
            # Poll often: Airflow's defaults suit large installations and only add latency on a single machine.
            "scheduler.scheduler_idle_sleep_time": 0.5,
            "scheduler.job_heartbeat_sec": 2,
            "scheduler.scheduler_heartbeat_sec": 1,
            "scheduler.trigger_timeout_check_interval": 2,
            "scheduler.task_instance_heartbeat_timeout": 30,
            "scheduler.task_instance_heartbeat_timeout_detection_interval": 2,
            "triggerer.job_heartbeat_sec": 2,
            "dag_processor.refresh_interval": 2,
            "dag_processor.bundle_refresh_check_interval": 1,
            "logging.base_log_folder": self.home / "logs",
            # Without an engine, jobs run as local processes, even as root: this Airflow runs its owner's code only.
            "paceline.allowed_runtimes": "docker,process",
            **config,
        }
        env = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
        env["AIRFLOW_HOME"] = str(self.home)
        for name, value in settings.items():
            section, key = name.split(".", 1)
            env[f"AIRFLOW__{section.upper()}__{key.upper()}"] = str(value)
        # Airflow's child processes look up `airflow` and `python` on the path.
        env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env.get("PATH", os.defpath)])
        env["NO_PROXY"] = env["no_proxy"] = "127.0.0.1,localhost"
        env["PYTHONUNBUFFERED"] = "1"
        return {**env, **environment}

    def _wait_until_healthy(self, timeout_s: float) -> None:
        end = time.monotonic() + timeout_s
        while unhealthy := [name for name, state in self.health().items() if state != "healthy"]:
            for name, process in self.processes.items():
                if process.poll() is not None:
                    raise AirflowStartError(f"{name} exited with code {process.returncode}:\n{self._log_tail(name)}")
            if time.monotonic() > end:
                # A failed component may hang instead of exiting; then only its log shows the failure.
                logs = dict.fromkeys([*(name.replace("_", "-") for name in unhealthy), "api-server"])
                tails = "\n".join(self._log_tail(name) for name in logs if name in self.processes)
                raise AirflowStartError(f"not healthy after {timeout_s:g} s: {', '.join(unhealthy)}\n{tails}")
            time.sleep(0.2)
        # Airflow builds its execution API on the first call, which takes longer than a task's request timeout. Make
        # that call here, so that the first task's request does not time out.
        httpx.get(f"{self.url}/execution/health", timeout=timeout_s, trust_env=False)

    def _log_tail(self, component: str, lines: int = 30) -> str:
        return "\n".join(self.log_path(component).read_text(errors="replace").splitlines()[-lines:])


def _write_private(path: Path, text: str) -> None:
    path.touch(mode=0o600)
    path.write_text(text)


def free_port() -> int:
    """Return a free TCP port on 127.0.0.1."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
