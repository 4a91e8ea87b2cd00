"""Trainings of several DAGs share a pool in a real Airflow, in real containers, under an arbiter that may be lost."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import docker
import pytest
import torch

from paceline.demo.airflow_process import AirflowProcess
from paceline.pace.sample import origin_of
from paceline.runtime import DockerRuntime

pytestmark = [pytest.mark.airflow, pytest.mark.docker, pytest.mark.alone, pytest.mark.timeout(1200)]

PICTURES = Path(os.environ.get("PACELINE_PICTURES", Path(__file__).parents[2] / "build" / "pictures"))
SCRIPT = Path(__file__).parent / "training" / "digits.py"
COUNTED = Path(__file__).parents[1] / "unit" / "train" / "counted.py"
SAMPLES, EPOCHS = 200, 30
POOL, CORES = "trainings", 1.2
# Times as long as the work takes: for trainings that fit if cores are shared well; and for those that begin when there
# is little for them, or nobody to give it, and whose beginnings take the longer for it.
FITS, SPARE = 1.4, 1.8
LEAST = {"night": 0.1, "urgent": 1.0, "at_once": 1.2}
DAGS = f"""
from airflow.sdk import DAG
from paceline.operators import ArbiterOperator, DeadlineTrainingOperator

for name, least in {LEAST!r}.items():
    with DAG(name, schedule=None, params={{"deadline": "300s", "batches": 200}}):
        DeadlineTrainingOperator(
            task_id="train",
            script={str(SCRIPT)!r},
            arguments=["--batches={{{{ params.batches }}}}", "--batch-size=64", "--checkpoint-every-s=2"],
            deadline="{{{{ params.deadline }}}}",
            deadline_from="task",
            min_devices=least,
            max_devices={CORES},
            on_infeasible="fail" if name == "at_once" else "best_effort",
            pool={POOL!r},
            shared=True,
        )

with DAG("soon", schedule=None):
    DeadlineTrainingOperator(
        task_id="train",
        script={str(COUNTED)!r},
        arguments=["{SAMPLES}", "{EPOCHS}", "0.02", "0", "0", "1", "1"],
        objective="throughput",
        budget={CORES},
        pool={POOL!r},
        shared=True,
    )

with DAG("arbiter", schedule=None):
    ArbiterOperator(
        task_id="arbiter", pool={POOL!r}, devices={CORES}, conn_id="airflow_api", every=20, lifetime=1200, retries=3,
        retry_delay=1,
    )
"""


@pytest.fixture(scope="module")
def shared_airflow(
    tmp_path_factory: pytest.TempPathFactory, docker_host: str, docker_client: docker.APIClient
) -> Iterator[AirflowProcess]:
    home = tmp_path_factory.mktemp("arbiter")
    airflow = AirflowProcess(home, config={"core.parallelism": 8}, environment={"DOCKER_HOST": docker_host})
    connection = {
        "conn_type": "http", "host": "127.0.0.1", "port": airflow.port,
        "login": "admin", "password": airflow.passwords["admin"],
    }  # fmt: skip
    airflow.env["AIRFLOW_CONN_AIRFLOW_API"] = json.dumps(connection)
    (airflow.dags_folder / "shared.py").write_text(DAGS)
    with airflow as running:
        yield running
    # Of trainings that a failed test has left behind.
    DockerRuntime(docker_client).remove_all({"paceline.task": "train"})


@pytest.fixture(scope="module")
def takes_s(shared_airflow: AirflowProcess) -> float:
    """Seconds of the urgent training, with an arbiter's start beside it: how much can be asked depends on the machine.

    It also is known from then on what it takes: nobody can be promised what nobody knows.
    """
    with an_arbiter(shared_airflow):
        run_id = shared_airflow.run_dag("urgent", {"deadline": "300s"})
        assert shared_airflow.wait("urgent", run_id, timeout_s=300) == "success"
    return float(shared_airflow.xcom("urgent", run_id, "train")["finished_s"])


@pytest.fixture
def arbiter(shared_airflow: AirflowProcess) -> Iterator[str]:
    """The run of an arbiter that ends with the test, however that ends."""
    with an_arbiter(shared_airflow) as run_id:
        yield run_id


@contextmanager
def an_arbiter(airflow: AirflowProcess) -> Iterator[str]:
    run_id = airflow.run_dag("arbiter")
    try:
        yield run_id
    finally:
        task = airflow.task_instance("arbiter", run_id, "arbiter")
        airflow.api("PATCH", f"/dags/arbiter/dagRuns/{quote(run_id)}", {"state": "failed"})
        # It hears of it at its next heartbeat: until then there would be two of them for one pool.
        end_s = time.monotonic() + 60
        while task["pid"] and Path(f"/proc/{task['pid']}").exists() and time.monotonic() < end_s:
            time.sleep(0.2)


class Watch:
    """Looks at ceilings and at real quotas, while trainings run."""

    def __init__(self, airflow: AirflowProcess, client: docker.APIClient) -> None:
        self._airflow, self._client = airflow, client
        self.most_ceilings = self.most_quotas = 0.0
        self.states: list[str] = []
        self.seen: set[str] = set()

    def look(self) -> None:
        rows = self._airflow.pages(f"/pools/{quote(POOL)}/trainings")
        # One that has ended holds nothing, although its task has not tidied up yet.
        here = [row for row in rows if not row["pace"] or row["pace"]["state"] not in ("finished", "failed")]
        ceilings = [row["ceiling"]["devices"] for row in here if row["ceiling"]]
        self.states = [row["pace"]["state"] for row in rows if row["pace"]]
        self.seen.update(self.states)
        self.most_ceilings = max(self.most_ceilings, sum(ceilings))
        quotas = []
        for one in self._client.containers(filters={"label": "paceline.task=train", "status": "running"}):
            try:
                host: dict[str, Any] = self._client.inspect_container(one["Id"])["HostConfig"]
            except docker.errors.NotFound:
                continue  # it ended just now
            quotas.append(host["CpuQuota"] / host["CpuPeriod"])
        self.most_quotas = max(self.most_quotas, sum(quotas))


def test_four_trainings_and_an_urgent_fifth_share_the_cores_whatever_becomes_of_their_arbiter(
    shared_airflow: AirflowProcess, docker_client: docker.APIClient, takes_s: float, arbiter: str
) -> None:
    airflow = shared_airflow
    all_s = (4 + 1) * takes_s / CORES
    runs = {"night": [airflow.run_dag("night", {"deadline": f"{all_s * SPARE:.1f}s"}) for _ in range(4)]}
    watch = Watch(airflow, docker_client)

    def wait_until(what: Callable[[], bool], timeout_s: float = 90.0) -> None:
        end_s = time.monotonic() + timeout_s
        while not what():
            assert time.monotonic() < end_s, f"not within {timeout_s:g} s"
            watch.look()
            time.sleep(0.5)

    wait_until(lambda: watch.states.count("training") >= 3)
    # Its process is gone at once, as if its machine had failed: trainings keep what they have.
    os.kill(airflow.task_instance("arbiter", arbiter, "arbiter")["pid"], signal.SIGKILL)
    # Airflow misses its heartbeat and starts it again; meanwhile nobody could be given anything.
    wait_until(lambda: airflow.task_instance("arbiter", arbiter, "arbiter")["try_number"] == 2)
    runs["urgent"] = [airflow.run_dag("urgent", {"deadline": f"{takes_s * SPARE:.1f}s"})]
    for dag_id, ids in runs.items():
        for run_id in ids:
            assert airflow.wait(dag_id, run_id, timeout_s=2 * all_s * SPARE, each=watch.look) == "success"
    late_pct = {
        dag_id: [airflow.xcom(dag_id, run_id, "train")["error_pct"] for run_id in ids] for dag_id, ids in runs.items()
    }
    print(takes_s, late_pct, watch.most_ceilings, watch.most_quotas, sorted(watch.seen))
    assert max(late_pct["urgent"]) <= 5.0
    assert max(map(abs, late_pct["night"])) <= 5.0, "on no more than they need"
    assert watch.most_ceilings <= CORES + 1e-6
    assert watch.most_quotas <= CORES + 0.01
    assert "paused" in watch.seen, "beside the urgent one there is not enough for four: some stood still"
    assert docker_client.containers(all=True, filters={"label": "paceline.task=train"}) == []
    draw(airflow, runs, PICTURES / "sharing.png")


def test_deadlines_that_fit_only_if_the_cores_are_shared_well_are_met_and_who_cannot_be_met_is_told(
    shared_airflow: AirflowProcess, docker_client: docker.APIClient, arbiter: str
) -> None:
    airflow = shared_airflow
    alone = airflow.run_dag("at_once", {"deadline": "300s", "batches": 300})
    assert airflow.wait("at_once", alone, timeout_s=300) == "success"
    takes_s = airflow.xcom("at_once", alone, "train")["finished_s"]
    # Shared equally, two would be done when all four are: far too late.
    deadlines_s = [round(2 * takes_s * FITS, 1)] * 2 + [round(4 * takes_s * FITS, 1)] * 2
    runs = [airflow.run_dag("night", {"deadline": f"{one}s", "batches": 300}) for one in deadlines_s]
    watch = Watch(airflow, docker_client)
    end_s = time.monotonic() + 90
    while watch.states.count("training") < 2:
        assert time.monotonic() < end_s
        watch.look()
        time.sleep(0.5)
    hopeless = airflow.run_dag("at_once", {"deadline": f"{1.05 * takes_s:.1f}s", "batches": 300})
    assert airflow.wait("at_once", hopeless, timeout_s=120, each=watch.look) == "failed"
    said = json.dumps(airflow.api("GET", f"/dags/at_once/dagRuns/{quote(hopeless)}/taskInstances/train/logs/1"))
    told = re.search(r"deadline: \d+ s does not fit beside those of others, the earliest that would is (\d+) s", said)
    assert told is not None
    assert float(told[1]) > 1.05 * takes_s
    for run_id in runs:
        assert airflow.wait("night", run_id, timeout_s=600, each=watch.look) == "success"
    late_pct = [airflow.xcom("night", run_id, "train")["error_pct"] for run_id in runs]
    print(takes_s, deadlines_s, late_pct, told[0], watch.most_ceilings, watch.most_quotas, sorted(watch.seen))
    assert max(map(abs, late_pct)) <= 2.0
    assert watch.most_ceilings <= CORES + 1e-6
    assert watch.most_quotas <= CORES + 0.01


def test_a_training_without_a_deadline_has_what_those_with_one_leave_it(
    shared_airflow: AirflowProcess, docker_client: docker.APIClient, takes_s: float, arbiter: str
) -> None:
    airflow = shared_airflow
    soon = airflow.run_dag("soon")
    watch = Watch(airflow, docker_client)
    ceilings: list[float] = []

    def look() -> None:
        watch.look()
        if ceiling := airflow.task_state("soon", soon, "train", "ceiling"):
            ceilings.append(ceiling["devices"])

    end_s = time.monotonic() + 90
    while "training" not in watch.states:
        assert time.monotonic() < end_s
        look()
        time.sleep(0.5)
    urgent = airflow.run_dag("urgent", {"deadline": f"{takes_s * SPARE:.1f}s"})
    beside = len(ceilings)
    assert airflow.wait("urgent", urgent, timeout_s=120 + takes_s, each=look) == "success"
    alone_again = len(ceilings)
    assert airflow.wait("soon", soon, timeout_s=300, each=look) == "success"
    late_pct = airflow.xcom("urgent", urgent, "train")["error_pct"]
    print(late_pct, sorted(set(ceilings)), watch.most_ceilings, watch.most_quotas)
    assert late_pct <= 5.0
    assert max(ceilings[:beside]) == pytest.approx(CORES), "alone it has all there is"
    assert min(ceilings[beside:alone_again]) <= CORES - LEAST["urgent"] + 1e-6
    assert max(ceilings[alone_again:]) >= 0.5, "as much again as its rest is worth a change"
    assert watch.most_ceilings <= CORES + 1e-6
    assert watch.most_quotas <= CORES + 0.01
    model = torch.load(Path(airflow.xcom("soon", soon, "train")["model"]) / "model.pt", weights_only=True)
    assert model["counts"].tolist() == [EPOCHS] * SAMPLES


def draw(airflow: AirflowProcess, runs: Mapping[str, Sequence[str]], path: Path) -> None:
    """The cores of each training over time, on top of each other: the guide's picture."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    lines, deadlines_s = {}, {}
    for dag_id, ids in runs.items():
        for number, run_id in enumerate(ids, start=1):
            origin_s = origin_of(airflow.task_state(dag_id, run_id, "train", "pace")).timestamp()
            history = airflow.task_state(dag_id, run_id, "train", "history")
            columns = [history["columns"].index(name) for name in ("t_s", "devices")]
            name = f"{dag_id} {number}" if len(ids) > 1 else dag_id
            lines[name] = [(origin_s + row[columns[0]], row[columns[1]]) for row in history["samples"]]
            deadlines_s[name] = origin_s + airflow.xcom(dag_id, run_id, "train")["deadline_s"]
    begin_s = min(line[0][0] for line in lines.values())
    seconds = range(int(max(line[-1][0] for line in lines.values()) - begin_s) + 2)

    def held(line: Sequence[tuple[float, float]], second: int) -> float:
        before = [devices for at_s, devices in line if at_s - begin_s <= second]
        return before[-1] if before and second <= line[-1][0] - begin_s else 0.0

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    stacked = [[held(line, second) for second in seconds] for line in lines.values()]
    shades = axes.stackplot(seconds, stacked, labels=list(lines), step="post", alpha=0.85)
    for shade, deadline_s in zip(shades, deadlines_s.values(), strict=True):
        axes.axvline(deadline_s - begin_s, color=shade.get_facecolor()[0], linewidth=1.5)
    axes.axhline(CORES, color="0.3", linestyle="--", linewidth=1)
    axes.set(xlabel="seconds (lines: deadlines)", ylabel="cores", xlim=(0, seconds[-1]), ylim=(0, CORES * 1.12))
    axes.legend(frameon=False, fontsize="small", loc="upper left", bbox_to_anchor=(1.0, 1.0))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
