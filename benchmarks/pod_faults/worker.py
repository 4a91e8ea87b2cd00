"""One try of a training task in a process of its own: ``python -m benchmarks.pod_faults.worker TRY.json``.

It runs ``paceline.run.Training`` as a task does, with a state store on disk. If the try has a ``death``, the process
kills itself at that moment, as if its machine had failed.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from kubernetes.client import ApiClient
from kubernetes.config import new_client_from_config

from benchmarks.pod_faults.proxy import client_through
from paceline.airflow.places import storage_path
from paceline.contract import Deadline
from paceline.errors import PERMANENT_ERRORS, DetachedError, PacelineError
from paceline.operators.checkpoint_copies import FileCopies
from paceline.run import Exchange, Training
from paceline.run.host import Host
from paceline.run.settings import Settings
from paceline.runtime import Job, JobSpec
from paceline.runtime.kubernetes import KubernetesRuntime

# Exit codes, by what Airflow would do.
SUCCESS, RETRY, FAIL, RESCHEDULE = 0, 10, 11, 12
MIN_DEVICES, MAX_DEVICES = 0.3, 1.0
SCRIPT = Path(__file__).with_name("counted.py")
_THREADS_END_S = 10.0
log = logging.getLogger("task")


class DiskState:
    """A live state in a folder, with a file for each key."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def get(self, key: str) -> Any:
        """Return the value of a key; ``None`` if it is missing."""
        try:
            return json.loads((self._folder / key).read_text())
        except FileNotFoundError:
            return None

    def set(self, key: str, value: Any) -> None:
        """Write a value at once, so that no process reads half of it."""
        part = self._folder / f".{key}.{os.getpid()}.{threading.get_ident()}"
        part.write_text(json.dumps(value))
        part.replace(self._folder / key)
        _reach(f"{key} stored")

    def delete(self, key: str) -> None:
        """Delete a key."""
        (self._folder / key).unlink(missing_ok=True)


def _make_host(folder: Path, plan: Mapping[str, Any]) -> Any:
    """Return the environment of one try, a ``paceline.run.host.Host``."""
    name, labels, place = "counted", {"paceline.task": "counted"}, folder / "model"
    runtime = KubernetesRuntime(lambda: _connect(plan["server"]), namespace=plan["namespace"])

    def spec(scratch: Path, devices: float) -> JobSpec:
        command = ["python", SCRIPT.name, *map(str, plan["arguments"])]
        files, memory = {SCRIPT.name: SCRIPT}, 512 * 1024**2
        return JobSpec(name, command, devices, image=plan["image"], labels=labels, files=files, memory_bytes=memory)

    def collect(job: Job) -> str:
        _reach("collect")
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            job.collect(Path(scratch, "output"))
            shutil.rmtree(place, ignore_errors=True)  # of an earlier try
            Path(scratch, "output").replace(place)
        _reach("collected")
        return str(place)

    store = DiskState(folder / "state")
    return _Host(
        store=store,
        exchange=lambda on_failure: Exchange(store, on_failure=on_failure),
        status_within_s=3.5,
        log=log,
        try_number=plan["try"],
        max_tries=plan["retries"],
        pool="default_pool",
        origin=lambda earlier: earlier or datetime.now(timezone.utc),
        runtime=lambda: runtime,
        runtimes=lambda: [runtime],
        check_runtime=lambda runtime: None,
        job_name=lambda: name,
        labels=lambda: labels,
        code_digest=lambda: name,
        spec=spec,
        past_run=lambda: None,
        past_tails=lambda runtime: (),
        output_place=lambda: str(place),
        collect=collect,
        checkpoint_copies=lambda: FileCopies(storage_path(str(folder / "copies" / name)), log),
        set_job=lambda job_id: _reach("job started"),
        on_sample=lambda sample: None,
        task_status=lambda: "active",
    )


class _Host(SimpleNamespace, Host):  # type: ignore[misc]  # inherits what these jobs do without
    """The host of this process."""


class _Client(ApiClient):
    """A client that says what it has requested."""

    def call_api(self, path: str, method: str, *arguments: Any, **options: Any) -> Any:
        answer = super().call_api(path, method, *arguments, **options)
        _reach(f"{method} {path.rpartition('/')[2]}")
        return answer


class _Lines(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        if line.startswith("line "):
            _reach(line.split(" ", 3)[3])


class _Death:
    """The moment at which this process is killed, if there is one."""

    moment, occurrence, after_s = "", 1, 0.0


def _reach(moment: str) -> None:
    """Log a moment, and die if it is that of the plan."""
    if not moment.startswith(("batch", "waits", "resumed", "saved", "GET", "pace", "history", "controller")):
        log.info("Reached: %s", moment)
    if moment == _Death.moment:
        _Death.occurrence -= 1
        if _Death.occurrence == 0:
            log.warning("Killed %.2f s after: %s", _Death.after_s, moment)
            if not _Death.after_s:
                os.kill(os.getpid(), signal.SIGKILL)
            threading.Timer(_Death.after_s, os.kill, (os.getpid(), signal.SIGKILL)).start()


def _connect(server: str | None) -> ApiClient:
    client = client_through(server) if server else new_client_from_config()
    return _Client(client.configuration)


def _run(folder: Path, plan: Mapping[str, Any]) -> int:
    deadline = plan["deadline"]
    settings = Settings(
        Deadline.parse(deadline) if deadline else Deadline(),
        written=deadline,
        min_devices=MIN_DEVICES,
        max_devices=MAX_DEVICES,
    )
    try:
        result = Training(settings, _make_host(folder, plan)).run()
    except DetachedError as error:
        log.warning("%s", error)
        return RESCHEDULE
    except PERMANENT_ERRORS as error:
        log.error("%s: %s", type(error).__name__, error)
        return FAIL
    except PacelineError as error:
        log.error("%s: %s", type(error).__name__, error)
        return RETRY
    except Exception:
        log.exception("The try has crashed")
        return RETRY
    log.info("Result: %s", json.dumps(result.to_json()))
    return SUCCESS


def _remaining_threads() -> list[str]:
    give_up_s = time.monotonic() + _THREADS_END_S
    while True:
        names = sorted(one.name for one in threading.enumerate() if one is not threading.main_thread())
        if not names or time.monotonic() > give_up_s:
            return names
        time.sleep(0.05)


def main(path: str) -> int:
    """Run the try; return the exit code."""
    plan = json.loads(Path(path).read_text())
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stdout)
    logging.getLogger().addHandler(_Lines())
    if plan["death"]:
        _Death.moment, _Death.occurrence, _Death.after_s = plan["death"]
    code = _run(Path(path).parent, plan)
    if names := _remaining_threads():
        log.error("Threads remain: %s", ", ".join(names))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
