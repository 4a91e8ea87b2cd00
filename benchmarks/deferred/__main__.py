"""How many training jobs does one triggerer control, and what does it need for them?

A private Airflow has a run with many deferred training tasks, whose jobs are simulated. The benchmark measures the
memory and CPU time of the triggerer and the API server, the time until new deadlines are in force (in the control step
that sets the job's allocation, by the triggerer's clock) and until the page shows them, and the deviation from the
deadlines.

Run it as ``python -m benchmarks.deferred [--jobs 1000] [--deadline 600] [--database URL] [--json FILE]``. ``URL`` is
that of an empty PostgreSQL database (``postgresql+psycopg2://...``); by default, Airflow uses SQLite. With ``--real``,
the jobs are containers of the engine at ``DOCKER_HOST`` that use little CPU time, and do not end: try ``--jobs 50``.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import psutil
import sqlalchemy
from demo.airflow_process import AirflowProcess

from benchmarks.engine import connect
from benchmarks.options import between, writable
from paceline.contract import DEADLINE, HISTORY, PACE

_DAG = """
from airflow.sdk import DAG
from paceline.operators import DeadlineTrainingOperator

with DAG("deferred", schedule=None):
    for number in range({tasks}):
        DeadlineTrainingOperator(
            task_id=f"train_{{number}}", {job}, deadline="{deadline_s:g}s", deferrable={deferrable}, retries=0,
        )
"""
_SIMULATED = 'command=["train"], runtime="simulated", max_devices=4'
_REAL = 'script="{script}", runtime="docker", max_devices=0.1'
_METADATA = "Metadata-Version: 2.1\nName: simulated-jobs\nVersion: 1\n"
_ENTRY_POINT = "[paceline.runtimes]\nsimulated = benchmarks.deferred.runtime:Simulated\n"
_BUSY = 0.5  # share of the deadline that a job needs on all devices
_TASKS = 10  # of each run: for each trigger, Airflow reads the whole DAG, which takes seconds for a thousand tasks
_MOVES_S = 0.25  # share of the deadline during which the deadlines of jobs are moved, one after another
_WINDOW_S = 60.0
_START_S = 900.0
_COMPONENTS = ("triggerer", "api-server", "scheduler")  # the scheduler has the processes of tasks as children


Job = tuple[str, str]  # run and task


class Cluster:
    """The Airflow of the benchmark.

    Parameters
    ----------
    home:
        Its folder.
    jobs, deadline_s:
        Number of jobs, and seconds until their deadline.
    database:
        URL of the database; ``None``: SQLite.
    real, deferrable:
        Whether the jobs are containers, and whether their tasks are deferred.
    """

    def __init__(
        self, home: Path, jobs: int, deadline_s: float, database: str | None, *, real: bool, deferrable: bool
    ) -> None:
        self.jobs, self.deadline_s, self.ends = jobs, deadline_s, home / "ends"
        self.real, self.deferrable = real, deferrable
        self.ends.mkdir()
        package = home / "site" / "simulated_jobs-1.dist-info"
        package.mkdir(parents=True)
        (package / "METADATA").write_text(_METADATA)
        (package / "entry_points.txt").write_text(_ENTRY_POINT)
        dags = home / "dags"
        dags.mkdir()
        job = _REAL.format(script=Path(__file__).with_name("idle.py")) if real else _SIMULATED
        values = {"tasks": min(_TASKS, jobs), "deadline_s": deadline_s, "job": job, "deferrable": deferrable}
        (dags / "deferred.py").write_text(_DAG.format(**values))
        allowed = "docker" if real else "simulated"
        config: dict[str, object] = {"triggerer.capacity": 2 * jobs, "paceline.allowed_runtimes": allowed}
        # The executor keeps a process for each slot.
        config |= {"core.parallelism": 32 if deferrable else max(jobs, 32), "core.max_active_tasks_per_dag": jobs}
        if database is not None:
            config["database.sql_alchemy_conn"] = database
        repository = Path(__file__).parents[2]
        environment = {"PYTHONPATH": f"{package.parent}:{repository}", "BENCHMARK_ENDS": str(self.ends)}
        self.airflow = AirflowProcess(home / "airflow", dags_folder=dags, config=config, environment=environment)
        self._engine = sqlalchemy.create_engine(self.airflow.env["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"])
        self.run_ids: list[str] = []

    def start(self) -> None:
        """Start the runs, and defer their tasks."""
        _until(lambda: self.airflow.api("GET", "/dags/deferred"), "the DAG")
        if self.real:
            self.airflow.api("PATCH", "/dags/deferred", {"is_paused": False})
        for number in range(-(-self.jobs // _TASKS)):
            self.airflow.api("POST", "/dags/deferred/dagRuns", {"logical_date": None, "dag_run_id": f"run_{number}"})
        if self.real:
            return
        batches = round(self.deadline_s * _BUSY * 4 / (1 + 0.1 * 3) / 0.5)  # Amdahl's law with 10 % serial work
        plant = json.dumps({"batches": batches, "batch_s": 0.5})
        command = [sys.executable, "-m", "benchmarks.deferred.seed", f"{self.deadline_s:g}"]
        subprocess.run([*command, plant], env=self.airflow.env, check=True, stdout=subprocess.DEVNULL)

    def stop(self) -> None:
        """End jobs that do not end by themselves, and wait until their containers are removed."""
        for run in self.airflow.api("GET", "/dags/deferred/dagRuns", limit=1000)["dag_runs"]:
            with suppress(httpx.TransportError):  # an answer may come late
                self.airflow.api("PATCH", f"/dags/deferred/dagRuns/{run['dag_run_id']}", {"state": "failed"})
        left = {"label": "paceline.dag=deferred"}
        engine = connect()
        if not self.deferrable:  # Airflow kills worker processes after 5 s, and so many take longer to stop their jobs
            for container in engine.containers(all=True, filters=left):
                engine.remove_container(container["Id"], force=True)
        _until(lambda: not engine.containers(all=True, filters=left), "the end of the containers")

    def stored(self, key: str, job: Job | None = None) -> dict[Job, dict[str, Any]]:
        """Return a value of the live state of each job, or of one."""
        query = "SELECT run_id, task_id, value FROM task_state_store WHERE key = :key"
        where = " AND run_id = :run AND task_id = :task" if job is not None else ""
        run_id, task_id = job or ("", "")
        values = {"key": key, "run": run_id, "task": task_id}
        with self._engine.connect() as connection:
            rows = connection.execute(sqlalchemy.text(query + where), values)
            return {(run, task): json.loads(value) for run, task, value in rows}

    def processes(self, component: str) -> list[psutil.Process]:
        """Return the processes of a component."""
        parent = psutil.Process(self.airflow.processes[component].pid)
        return [parent, *parent.children(recursive=True)]


def measure(cluster: Cluster) -> dict[str, Any]:
    """Return the figures of one run."""
    began_s = time.monotonic()
    cluster.start()
    seeded_s = time.monotonic()
    _until(lambda: len(cluster.stored(PACE)) == cluster.jobs, "the first samples of all jobs")
    controlled_s = time.monotonic()
    print(f"{cluster.jobs} jobs are controlled {controlled_s - seeded_s:.0f} s after their deferral")
    time.sleep(5.0)
    figures: dict[str, Any] = {"jobs": cluster.jobs, "seed_s": seeded_s - began_s, "start_s": controlled_s - seeded_s}
    with _usage(cluster, _COMPONENTS, figures):
        before = {job: sample["updated_at"] for job, sample in cluster.stored(PACE).items()}
        time.sleep(_WINDOW_S)
        after = {job: sample["updated_at"] for job, sample in cluster.stored(PACE).items()}
    figures["silent"] = sum(before[job] == after[job] for job in before)
    figures["in_force_s"], figures["published_s"] = zip(*_move_deadlines(cluster), strict=True)
    if not cluster.real:
        _until(lambda: len(list(cluster.ends.iterdir())) == cluster.jobs, "the end of all jobs", cluster.deadline_s * 2)
        figures["deviation_pct"] = _deviations(cluster)
    figures["blocked"] = cluster.airflow.log_path("triggerer").read_text().count("async thread was blocked")
    return figures


def _move_deadlines(cluster: Cluster) -> Iterator[tuple[float, float]]:
    """Move the deadlines of jobs, one after another; yield the seconds until each was in force, and was published."""
    jobs, ends_s = sorted(cluster.stored(PACE)), time.monotonic() + _MOVES_S * cluster.deadline_s
    random.Random(0).shuffle(jobs)
    while jobs and time.monotonic() < ends_s:
        job, new_s, began_s = jobs.pop(), round(cluster.deadline_s * 1.1), time.time()
        cluster.airflow.set_task_state("deferred", *job, DEADLINE, f"{new_s}s")
        while (sample := cluster.stored(PACE, job)[job])["deadline_s"] != new_s:
            if time.time() - began_s > _START_S:
                raise TimeoutError(f"the new deadline of {job} is not in force after {_START_S:g} s")
            time.sleep(0.05)
        published_s = time.time() - began_s
        while not (events := _deadline_events(cluster, job)):  # a worker process stores the history after the sample
            time.sleep(0.05)
        yield _origin_s(sample) + events[0]["t_s"] - began_s, published_s


def _deadline_events(cluster: Cluster, job: Job) -> list[dict[str, Any]]:
    return [one for one in cluster.stored(HISTORY, job)[job]["events"] if one["kind"] == "deadline"]


def _deviations(cluster: Cluster) -> list[float]:
    """Return how much each job ended after its deadline, in percent of the time to the deadline."""
    deviations = []
    for job, sample in cluster.stored(PACE).items():
        finished_s = json.loads((cluster.ends / "-".join(job)).read_text())["finished_s"]
        deviations.append(100 * (finished_s - _origin_s(sample) - sample["deadline_s"]) / sample["deadline_s"])
    return deviations


def _origin_s(sample: Mapping[str, Any]) -> float:
    """Return the time from which a job's deadline counts."""
    return datetime.fromisoformat(sample["updated_at"]).timestamp() - float(sample["t_s"])


@contextmanager
def _usage(cluster: Cluster, components: Sequence[str], figures: dict[str, Any]) -> Iterator[None]:
    """Add the memory and the cores of the components during the block to the figures."""
    processes = {name: cluster.processes(name) for name in components}
    began_s, used_s = time.monotonic(), {name: _cpu_s(processes[name]) for name in components}
    yield
    took_s = time.monotonic() - began_s
    for name, members in processes.items():
        memory = [member.memory_full_info() for member in members]
        figures[name] = {
            "cores": (_cpu_s(members) - used_s[name]) / took_s,
            "memory_mb": sum(one.pss for one in memory) / 1e6,
            "threads": sum(member.num_threads() for member in members),
        }


def _cpu_s(processes: Sequence[psutil.Process]) -> float:
    times = [process.cpu_times() for process in processes]
    return sum(one.user + one.system for one in times)


def _until(holds: Callable[[], object], what: str, within_s: float = _START_S, every_s: float = 1.0) -> None:
    end_s, error = time.monotonic() + within_s, None
    while time.monotonic() < end_s:
        try:
            if holds():
                return
        except Exception as raised:  # the API server may be busy
            error = raised
        time.sleep(every_s)
    raise TimeoutError(f"waited {within_s:g} s for {what} ({error})")


def describe(figures: Mapping[str, Any]) -> str:
    """Return the figures as lines for people."""
    deviations = figures.get("deviation_pct")
    lines = [f"{figures['jobs']} jobs, controlled {figures['start_s']:.0f} s after their deferral"]
    for name in _COMPONENTS:
        used = figures[name]
        lines.append(f"{name}: {used['cores']:.2f} cores, {used['memory_mb']:.0f} MB, {used['threads']} threads")
    lines += [
        f"jobs without a new sample in {_WINDOW_S:g} s: {figures['silent']}",
        f"{len(figures['in_force_s'])} new deadlines: in force after {_spread(figures['in_force_s'])}, "
        f"published after {_spread(figures['published_s'])}",
        f"Airflow's warnings of a blocked event loop: {figures['blocked']}",
    ]
    if deviations:
        mean_pct, spread = statistics.mean(map(abs, deviations)), f"{min(deviations):+.2f} to {max(deviations):+.2f} %"
        lines.append(f"deviation from the deadlines: {mean_pct:.2f} % (mean of the absolute values), from {spread}")
    return "\n".join(lines)


def _spread(waits_s: Sequence[float]) -> str:
    return f"{statistics.median(waits_s):.1f} s in the median and {max(waits_s):.1f} s at most"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark, print its result and write the figures as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.deferred", description=__doc__)
    parser.add_argument("--jobs", type=between(1, 10_000), default=1000)
    parser.add_argument("--deadline", type=between(60.0, 86_400.0), default=600.0, help="seconds")
    parser.add_argument("--database", default=None, metavar="URL")
    parser.add_argument("--real", action="store_true", help="jobs in containers")
    parser.add_argument("--slots", action="store_true", help="with --real: jobs that are not deferred, for comparison")
    parser.add_argument("--json", type=writable, default=None, metavar="FILE")
    chosen = parser.parse_args(arguments)
    if chosen.slots and not chosen.real:
        parser.error("argument --slots: expected --real, too")
    with tempfile.TemporaryDirectory(prefix="pace.") as folder:
        options = {"real": chosen.real, "deferrable": not chosen.slots}
        cluster = Cluster(Path(folder), chosen.jobs, chosen.deadline, chosen.database, **options)
        with cluster.airflow:
            try:
                figures = measure(cluster)
                print(describe(figures))
                if chosen.json:
                    chosen.json.write_text(json.dumps(figures, indent=1) + "\n")
            finally:
                if chosen.real:
                    cluster.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
