"""The faults. Each function starts a round's jobs and causes the fault at a moment that it draws."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from urllib.parse import quote

from benchmarks.deferred_faults.rounds import DAG, DEADLINES_S, Round, run_shell, until

Strike = Callable[[Round], None]
_SERVER_AWAY_S, _ENGINE_AWAY_S = 60.0, 20.0
_DURING = (0.1, 0.9)  # share of the first deadline


def triggerer_killed_at_the_start(round_: Round) -> None:
    """The triggerer is killed while the jobs start, or soon after."""
    _kill_triggerer(round_, 0.0, 0.3)


def triggerer_killed_in_the_middle(round_: Round) -> None:
    """The triggerer is killed in the middle of the first job."""
    _kill_triggerer(round_, 0.3, 0.7)


def triggerer_killed_at_the_end(round_: Round) -> None:
    """The triggerer is killed about the end of one of the jobs."""
    name = round_.draw.choice(list(DEADLINES_S))
    end = DEADLINES_S[name] / DEADLINES_S["short"]
    _kill_triggerer(round_, end * 0.9, end * 1.05)


def two_triggerers(round_: Round) -> None:
    """A second triggerer starts; then the first is killed or ended, and the second takes its jobs."""
    round_.start_until(round_.draw.uniform(0.0, 0.5))
    airflow, before = round_.airflow, _triggerers(round_)
    airflow.start_component("second", ("triggerer", "--skip-serve-logs"))
    until(lambda: _triggerers(round_) - before, "the second triggerer does not start")
    time.sleep(round_.draw.uniform(0.0, 30.0))
    round_.note_forecasts()
    first = airflow.processes.pop("triggerer")
    airflow.processes["triggerer"] = airflow.processes.pop("second")
    if round_.draw.choice((True, False)):
        round_.details += ", the first is killed"
        os.killpg(first.pid, signal.SIGKILL)
    else:
        round_.details += ", the first is ended"
        first.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            first.wait(60)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(first.pid, signal.SIGKILL)
    first.wait()


def server_away(round_: Round) -> None:
    """The API server is killed, and starts again after a minute."""
    round_.start_until(round_.draw.uniform(*_DURING))
    server = round_.airflow.processes["api-server"]
    os.killpg(server.pid, signal.SIGKILL)
    server.wait()
    with contextlib.ExitStack() as starting:
        starting.callback(round_.airflow.start_component, "api-server")
        time.sleep(_SERVER_AWAY_S)
    until(lambda: round_.airflow.health()["api_server"] == "healthy", "the API server does not start")


def engine_away(round_: Round) -> None:
    """The connections to the engine are cut, and it refuses new ones for 20 s."""
    round_.start_until(round_.draw.uniform(*_DURING))
    engine = round_.place.engine
    engine.is_away = True
    engine.cut()
    time.sleep(_ENGINE_AWAY_S)
    engine.is_away = False


def database_restarted(round_: Round) -> None:
    """The database is restarted."""
    round_.start_until(round_.draw.uniform(*_DURING))
    run_shell(round_.place.restart_database)


def task_cleared(round_: Round) -> None:
    """One of the tasks is cleared: it trains again, in another container."""
    round_.start_until(round_.draw.uniform(*_DURING))
    name = round_.draw.choice(list(DEADLINES_S))
    round_.details += f", {name}"
    round_.jobs[name].is_same = False
    cleared = {"dry_run": False, "dag_run_id": round_.run_id, "task_ids": [name], "only_failed": False}
    round_.airflow.api("POST", f"/dags/{DAG}/clearTaskInstances", cleared)
    job = round_.jobs[name]
    until(lambda: job.container not in round_.containers(), f"the container of {name} is not removed")


def task_marked(round_: Round) -> None:
    """One of the tasks is marked as failed or as successful: its job is removed."""
    round_.start_until(round_.draw.uniform(*_DURING))
    name, state = round_.draw.choice(list(DEADLINES_S)), round_.draw.choice(("failed", "success"))
    round_.details += f", {name} as {state}"
    job = round_.jobs[name]
    job.state, job.is_same = state, False
    job.has_result = False
    path = f"/dags/{DAG}/dagRuns/{quote(round_.run_id)}/taskInstances/{name}"
    round_.airflow.api("PATCH", path, {"new_state": state})
    until(lambda: job.container not in round_.containers(), f"the container of {name} is not removed")


def dag_gone(round_: Round) -> None:
    """The file of the DAG is deleted, and Airflow forgets the DAG; later it is back."""
    round_.start_until(round_.draw.uniform(*_DURING))
    round_.place.write_dag().unlink()
    round_.ends.callback(round_.place.write_dag)
    until(lambda: round_.airflow.api("GET", f"/dags/{DAG}")["is_stale"], "the DAG does not become stale")
    time.sleep(round_.draw.uniform(0.0, 30.0))
    round_.place.write_dag()


def _triggerers(round_: Round) -> set[int]:
    """Return the ids of the triggerers that run, as Airflow knows them."""
    jobs = round_.airflow.api("GET", "/jobs", job_type="TriggererJob", is_alive=True)["jobs"]
    return {job["id"] for job in jobs}


def _kill_triggerer(round_: Round, earliest: float, latest: float) -> None:
    round_.start_until(round_.draw.uniform(earliest, latest))
    triggerer = round_.airflow.processes["triggerer"]
    os.killpg(triggerer.pid, signal.SIGKILL)
    triggerer.wait()
    round_.airflow.start_component("triggerer")


FAULTS: dict[str, Strike] = {
    "triggerer killed, start": triggerer_killed_at_the_start,
    "triggerer killed, middle": triggerer_killed_in_the_middle,
    "triggerer killed, end": triggerer_killed_at_the_end,
    "two triggerers": two_triggerers,
    "API server away": server_away,
    "engine away": engine_away,
    "database restarted": database_restarted,
    "task cleared": task_cleared,
    "task marked": task_marked,
    "DAG gone": dag_gone,
}
