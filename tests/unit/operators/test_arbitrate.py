"""``ArbiterOperator`` validates arguments, reads requests and sends grants."""

from __future__ import annotations

import logging
from datetime import timedelta
from types import SimpleNamespace

import pytest
from tests.metrics import receive_metrics, statsd  # noqa: F401

from paceline.airflow.api import AirflowApiError
from paceline.allocate import ElasticFlow
from paceline.arbiter import Arbiter
from paceline.contract import ArbiterStatus, Ceiling
from paceline.errors import InvalidInputError, RuntimeUnavailableError
from paceline.operators import ArbiterOperator, Kubernetes
from paceline.operators._pool import PoolApi, PoolLog
from paceline.operators.arbitrate import _make_policy, _task_key, _to_request

VALID = {"task_id": "arbiter", "pool": "training", "devices": 2, "conn_id": "airflow_api"}


INVALID = {
    "devices": (0, "many", True),
    "policy": ("fair", None, 3, object()),
    "every": (0,),
    "lifetime": (-1,),
    "quantum": (0, "x", float("nan")),
    "pool": (None, "", "a/b"),
}


@pytest.mark.parametrize(("field", "value"), [(field, value) for field, values in INVALID.items() for value in values])
def test_invalid_argument_is_rejected_by_name(field, value):
    with pytest.raises(InvalidInputError, match=field):
        ArbiterOperator(**{**VALID, field: value})


def test_templates_are_not_validated_when_the_dag_is_parsed():
    made = ArbiterOperator(**{**VALID, "devices": "{{ params.devices }}", "policy": "{{ params.policy }}"})
    assert made.pool == "default_pool", "the arbiter takes no slot of the pool that it shares"
    assert ArbiterOperator(**{**VALID, "every": timedelta(minutes=5)}).every == timedelta(minutes=5)


def job_row(**changed):
    return {
        "dag_id": "night", "run_id": "r1", "task_id": "train", "map_index": -1, "state": "running",
        "started_at": "2030-01-01T12:00:00Z", "priority_weight": 1, "lost": False, "pace": None,
        "ceiling": None, **changed,
    }  # fmt: skip


def waiting_sample(**changed):
    """Return a sample of a job that waits for devices."""
    return {
        "state": "waiting", "t_s": 5.0, "updated_at": "2030-01-01T12:00:05+00:00", "progress_pct": 0.0,
        "setpoint_pct": 0.0, "devices": 0.0, "min_devices": 0.1, "max_devices": 2.0, "quantum": 0.05,
        "deadline_s": 6e9, "grant": 0, "shared": True, "metrics": {}, "remaining": None, **changed,
    }  # fmt: skip


def test_mapped_tasks_have_different_keys():
    assert _task_key(job_row()) == "night r1 train"
    assert _task_key(job_row(map_index=3)) == "night r1 train[3]"


def test_whole_grant_is_committed_for_a_lost_task_and_reported_devices_for_other_tasks():
    assert _to_request("a", job_row(), uses_priority=False) is None
    granted = Ceiling(0.5, 3, max_devices=1.0).to_json()
    unreported = _to_request("a", job_row(ceiling=granted), uses_priority=False)
    assert (unreported.lost, unreported.committed) == (True, 1.0)
    pace = waiting_sample(state="training", devices=0.8, deadline_s=60.0, grant=3)
    reported = _to_request("a", job_row(ceiling=granted, pace=pace), uses_priority=False)
    assert (reported.lost, reported.committed) == (False, 0.8)
    lost = _to_request("a", job_row(ceiling=granted, pace=pace, lost=True), uses_priority=False)
    assert (lost.lost, lost.committed) == (True, 1.0)
    unshared = _to_request("a", job_row(pace={**pace, "shared": False}, lost=True), uses_priority=False)
    assert (unshared.lost, unshared.committed) == (True, 2.0), "without grants, a job may use up to its maximum"
    ended = _to_request(
        "a", job_row(ceiling=granted, pace={**pace, "state": "finished"}, lost=True), uses_priority=False
    )
    assert ended.committed == 0.0


class FakeApi:
    """A fake API of Paceline's plugin. Runs in ``deleted`` are deleted before the arbiter sends their grants.

    Before each change, ``conflicts`` yields an HTTP status with which the server refuses the change, or 0.
    """

    def __init__(self, rows, deleted=(), conflicts=()):
        self.rows, self.deleted, self.conflicts, self.sent, self.version = rows, deleted, iter(conflicts), {}, 7
        self.statuses = []

    def pages(self, path, json=None, *, method="GET"):
        if method == "GET":
            assert path == "/pools/training/jobs"
            return {"version": self.version, "jobs": self.rows}
        if status := next(self.conflicts, 0):
            raise AirflowApiError(status, f"refused with {status}")
        assert json["arbiter"] == "task instance 1"
        if path == "/pools/training/arbiter":
            self.statuses += [json["status"]] if "status" in json else []
            return None
        assert (path, json["version"]) == ("/pools/training/grants", self.version)
        self.version += 1
        return [self.store(grant) for grant in json["grants"]]

    def store(self, grant):
        if grant["run_id"] in self.deleted:
            return {"stored": False, "detail": "the job no longer exists"}
        self.sent[grant["run_id"]] = grant["ceiling"]["devices"]
        return {"stored": True, "detail": ""}


def pool_of(api, log="test"):
    return PoolApi(api, "training", "task instance 1", logging.getLogger(log))


def run_step(operator, pool, arbiter, pool_log):
    operator._step(pool, operator._report(arbiter), pool_log)


def test_deleted_run_does_not_block_grants_of_other_runs(caplog):
    api = FakeApi([job_row(run_id=name, pace=waiting_sample()) for name in ("r1", "r2", "r3")], deleted=("r1",))
    pool_log = PoolLog(logging.getLogger("test"))
    run_step(ArbiterOperator(**VALID), pool_of(api), Arbiter(2.0), pool_log)
    assert {run_id: devices > 0 for run_id, devices in api.sent.items()} == {"r2": True, "r3": True}
    assert caplog.text.count("night r1 train: could not send the grant: the job no longer exists") == 1
    assert pool_log.result(1).to_json() == {
        "decisions": 1,
        "grants": 2,
        "jobs": 3,
        "reasons": {"speed_unknown": 2},
        "peak_devices": 0.0,
    }


def test_arbiter_publishes_its_capacity_its_decisions_and_planned_starts(statsd):  # noqa: F811
    pace = waiting_sample(min_devices=2.0, quantum=1.0)
    first = job_row(run_id="first", pace=pace)
    later = job_row(run_id="later", map_index=3, pace=pace, started_at="2030-01-01T12:01:00Z")
    api = FakeApi([first, later])
    operator = ArbiterOperator(**{**VALID, "policy": "fifo", "quantum": 1})
    report = operator._report(Arbiter(2.0, quantum=1.0, policy=_make_policy("fifo", 180.0)))
    for _ in range(2):
        operator._step(pool_of(api), report, PoolLog(logging.getLogger("test")))
    (status,) = (ArbiterStatus.read(one) for one in api.statuses)  # not each second
    assert (status.devices, status.quantum, status.policy, status.every_s) == (2.0, 1.0, "fifo", 180.0)
    assert (status.decisions, status.decided_at, status.namespace) == (1, status.at, None)
    assert 0 < status.decision_ms <= status.decision_ms_max
    assert (status.ends_at - status.at).total_seconds() == pytest.approx(3600, abs=60)
    assert [(one.run_id, one.at) for one in status.starts] == [("first", status.at)], "fifo does not plan later starts"
    metrics = [line.split(":")[0] for line in receive_metrics(statsd, 8)]
    assert metrics[:2] == [f"airflow.paceline.arbiter_{name},pool=training" for name in ("decisions", "decision")]
    assert "airflow.paceline.pool_waiting,pool=training" in metrics


def test_arbiter_without_the_lease_waits_and_logs_it_once(caplog):
    api = FakeApi([job_row(pace=waiting_sample())], conflicts=(409, 409, 0, 412, 0))
    operator, pool, arbiter = ArbiterOperator(**VALID), pool_of(api), Arbiter(2.0)
    pool_log = PoolLog(logging.getLogger("test"))
    for _ in range(2):  # another arbiter has the lease
        run_step(operator, pool, arbiter, pool_log)
        assert api.sent == {}
    assert caplog.text.count("Waiting to allocate the devices of the pool training: refused with 409") == 1
    run_step(operator, pool, arbiter, pool_log)  # it takes the lease, but the grants have changed since it read them
    assert (api.sent, pool_log.result(0).grants) == ({}, 0)
    run_step(operator, pool, arbiter, pool_log)
    assert (api.sent, pool_log.result(0).grants) == ({"r1": 2.0}, 1)


def test_pool_follows_the_quota_of_its_namespace(monkeypatch, capsys):
    answers = [2.0, 3.0, RuntimeUnavailableError("the cluster does not respond"), 0.0]

    def quota():
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(Kubernetes, "open", lambda self: SimpleNamespace(quota=quota))
    monkeypatch.setattr("paceline.operators.arbitrate._QUOTA_EVERY_S", 0.0)
    operator = ArbiterOperator(**{**VALID, "devices": Kubernetes(namespace="training")})
    arbiter, pool, pool_log = (
        Arbiter(operator._read_devices()),
        pool_of(FakeApi([])),
        PoolLog(logging.getLogger("test")),
    )
    seen = [arbiter.devices]
    for _ in range(3):
        run_step(operator, pool, arbiter, pool_log)
        seen.append(arbiter.devices)
    assert seen == [2.0, 3.0, 3.0, 0.05], "an outage changes nothing, and a pool has at least the quantum"
    logged = capsys.readouterr().out
    assert "The pool has 3 cores now, as its quota says; it had 2" in logged
    assert "Could not read the quota of the pool; it stays at 3 cores" in logged


def test_arbiter_that_airflow_no_longer_runs_ends(monkeypatch):
    operator = ArbiterOperator(**VALID)
    pool = pool_of(FakeApi([], conflicts=(410,)))
    with pytest.raises(AirflowApiError, match="410"):
        operator._repeat(lambda: run_step(operator, pool, Arbiter(2.0), PoolLog(logging.getLogger("test"))))


@pytest.mark.parametrize("name", ["elasticflow", "least_cost", "rg"])
def test_policy_that_cannot_share_a_pool_is_rejected(name):
    with pytest.raises(InvalidInputError, match=f"policy: got '{name}', expected a policy that shares one pool"):
        _make_policy(name, 60.0)


@pytest.mark.parametrize(
    ("policy", "accepted"),
    [(ElasticFlow, r"a policy, such as ElasticFlow\(\), not its"), (ElasticFlow(), "a policy that")],
)
def test_policy_that_cannot_be_used_is_rejected_when_the_dag_is_parsed(policy, accepted):
    with pytest.raises(InvalidInputError, match=f"policy: got '(ElasticFlow|elasticflow)', expected {accepted}"):
        ArbiterOperator(**{**VALID, "policy": policy})


@pytest.mark.parametrize(
    "policy", ["on_time_promises", "on_time", "edf", "fifo", "priority", "greedy", "growing", "milp"]
)
def test_only_the_priority_policy_uses_priority_weight_of_airflow(policy):
    pace = waiting_sample(min_devices=1.5)
    early = job_row(run_id="early", pace=pace)
    important = job_row(run_id="important", pace=pace, started_at="2030-01-01T12:01:00Z", priority_weight=7)
    api = FakeApi([early, important])
    operator = ArbiterOperator(**{**VALID, "policy": policy})
    arbiter = Arbiter(2.0, policy=_make_policy(policy, 60.0))
    run_step(operator, pool_of(api), arbiter, PoolLog(logging.getLogger("test")))
    assert [run_id for run_id, devices in api.sent.items() if devices > 0] == [
        "important" if policy == "priority" else "early"
    ]
