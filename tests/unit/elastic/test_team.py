"""A team tolerates failures of engines and nodes. In these tests, the nodes are stub jobs that fail on demand."""

from __future__ import annotations

import time
from collections.abc import Callable
from unittest.mock import Mock

import pytest

from paceline.elastic import Scaling, Team, TeamConfiguration, TeamSample
from paceline.elastic._members import TeamMember
from paceline.elastic._meter import Meter
from paceline.elastic.nodes import LABEL_NODE, LABEL_TEAM
from paceline.elastic.runtime import TeamRuntime
from paceline.elastic.team import TeamJob
from paceline.errors import (
    InvalidInputError,
    JobLostError,
    RuntimeUnavailableError,
    TrainingFailedError,
    UnsuitableCodeError,
)
from paceline.run import MemoryState
from paceline.run._earlier import EarlierJob
from paceline.runtime import JobSpec, JobStatus, Usage
from paceline.train.job import EXIT_EXCLUDED, EXIT_REJECTED, EXIT_STATE_LOST, EXIT_TERMINATED
from paceline.train.progress import Progress

UNREACHABLE = RuntimeUnavailableError("the engine does not answer")


class StubJob:
    """A job that fails on demand."""

    def __init__(self, cores: float) -> None:
        self.id = f"job {id(self)}"
        self.cores, self.exit_code, self.gone, self.removed, self.starts = cores, None, False, False, 1
        self.error: Exception | None = None
        self.restart_error: Exception | None = None
        self.answers = True
        self.failed_stops = 0
        self.finished_s: float | None = None
        self.lines: list[str] = []

    def resize(self, devices: float) -> None:
        if self.gone:
            raise JobLostError("it was removed")
        self.cores = devices
        if not self.answers:
            raise RuntimeUnavailableError("no answer")

    def wait(self, timeout_s: float) -> bool:
        return self.gone or self.exit_code is not None

    def status(self) -> JobStatus:
        if not self.answers:
            raise UNREACHABLE
        if self.gone:
            return JobStatus("gone")
        if self.exit_code is None:
            return JobStatus("running", reason="paused")
        return JobStatus("exited", self.exit_code, finished_s=self.finished_s)

    def restart(self) -> None:
        if self.restart_error:
            raise self.restart_error
        self.exit_code, self.starts = None, self.starts + 1

    def stop(self, grace_s: float = 5.0) -> None:
        if self.error:
            self.failed_stops += 1
            raise self.error
        self.exit_code = 143 if self.exit_code is None else self.exit_code

    def remove(self) -> None:
        if self.error:
            raise self.error
        self.removed = True

    def close(self) -> None:
        pass

    def usage(self) -> Usage:
        if self.gone:
            raise JobLostError("it was removed")
        return Usage(0.0, 0, 0.0)

    def read_lines(self) -> list[str]:
        lines, self.lines = self.lines, []
        return lines


class StubTeam:
    """A team of stub jobs, with one parameter server and some workers on one core each."""

    def __init__(self, workers: int = 2, budget: float | None = None) -> None:
        configuration = TeamConfiguration((1.0,), (1.0,) * workers)
        self.scaling = Scaling(budget or configuration.cores, Team(stable_samples=2), configuration=configuration)
        self.jobs = {name: StubJob(cores) for name, cores in configuration.nodes.items()}
        self.start_error: Exception | None = None
        self.removals = 0
        self.now_s = 0.0
        nodes = {name: TeamMember(job, job.cores) for name, job in self.jobs.items()}
        self.job = TeamJob(nodes, self.start, self.remove_all, self.scaling, Meter(), lambda: self.now_s)

    def start(self, name: str, cores: float) -> StubJob:
        if self.start_error:
            raise self.start_error
        self.jobs[name] = StubJob(cores)
        return self.jobs[name]

    def remove_all(self) -> None:
        self.removals += 1

    def step(self, used: float) -> None:
        """Let scaling decide from samples in which all nodes use the share ``used`` of their cores."""
        for _ in range(2):
            cores = self.scaling.configuration.nodes
            sample = TeamSample(5.0, {name: used * one for name, one in cores.items()}, {"ps-0": 0.1})
            step = self.scaling.decide(sample)
            if step is not None:
                self.job._accept_step(step)
        self.job.usage()

    def recover(self, *names: str) -> None:
        """End the failures of these nodes, and wait until the team has removed the nodes."""
        for name in names:
            self.jobs[name].error = None
        assert becomes_true(lambda: all(self.jobs[name].removed for name in names))

    @property
    def cores(self) -> float:
        return sum(job.cores for job in self.jobs.values() if not job.removed)


def becomes_true(condition: Callable[[], bool]) -> bool:
    """Wait up to 60 s until the condition is true, and return the condition."""
    limit_s = time.monotonic() + 60
    while not condition() and time.monotonic() < limit_s:
        time.sleep(0.01)
    return condition()


@pytest.fixture
def team(monkeypatch: pytest.MonkeyPatch) -> StubTeam:
    monkeypatch.setattr("paceline.elastic._members._RETRY_S", 0.01)
    return StubTeam()


@pytest.fixture
def leaving_team(team: StubTeam) -> StubTeam:
    """Return a team whose worker-3 cannot be removed."""
    team.step(used=0.5)
    team.jobs["worker-3"].error = UNREACHABLE
    team.step(used=0.5)
    return team


def test_worker_keeps_its_cores_until_its_removal_succeeds(team: StubTeam) -> None:
    team.step(used=0.5)
    assert sorted(team.jobs) == ["ps-0", "worker-0", "worker-1", "worker-2", "worker-3"]
    assert team.cores == pytest.approx(3.0)
    newcomers = [team.jobs[name] for name in ("worker-2", "worker-3")]
    for job in newcomers:
        job.error = UNREACHABLE
    team.step(used=0.5)  # the step did not increase the speed and is reverted
    assert becomes_true(lambda: min(job.failed_stops for job in newcomers) > 1)
    team.job.usage()
    assert team.jobs["worker-0"].cores == pytest.approx(0.5), "not increased while the new workers may still run"
    team.recover("worker-2", "worker-3")
    assert becomes_true(lambda: team.job.usage() is not None and team.jobs["worker-0"].cores == pytest.approx(1.0))
    assert team.cores == pytest.approx(3.0)
    assert [step.kind for step in team.job.take_steps()] == ["worker", "back"]


def test_smaller_budget_also_shrinks_a_leaving_node(leaving_team: StubTeam) -> None:
    leaving_team.job.resize(1.0)
    assert leaving_team.cores <= 1.0 + 0.1 + 1e-6, "a twentieth of a core for each leaving node"
    leaving_team.recover("worker-3")


def test_resumed_team_grows_in_steps_but_shrinks_immediately(team: StubTeam) -> None:
    team.job.resume(6.0)
    assert (team.job.take_steps(), team.cores, team.job.cores) == ([], 3.0, 3.0)
    team.step(used=0.99)
    assert [step.kind for step in team.job.take_steps()] == ["up"]
    assert team.job.cores == pytest.approx(4.5)
    team.job.resume(1.5)
    assert team.cores == pytest.approx(1.5)


def test_start_report_of_a_worker_is_not_progress(team: StubTeam) -> None:
    for report, done in ((Progress(0, 900, event="start"), None), (Progress(500, 900), 500)):
        team.jobs["worker-1"].lines.append(report.to_line())
        team.job.read_lines()
        newest = team.job._members.nodes["worker-1"].newest
        assert (newest and newest.done) == done


def test_removed_node_is_replaced_and_other_nodes_can_still_shrink(team: StubTeam) -> None:
    team.jobs["worker-0"].gone = True
    team.job.usage()
    assert not team.jobs["worker-0"].gone
    team.jobs["worker-0"].gone = True
    team.job.resize(1.5)
    assert team.jobs["worker-1"].cores == team.jobs["ps-0"].cores == 0.5
    team.job.usage()
    assert (team.jobs["worker-0"].gone, team.jobs["worker-0"].cores) == (False, 0.5)
    team.jobs["ps-0"].gone = True
    with pytest.raises(JobLostError):
        team.job.usage()


def test_resize_tolerates_a_node_that_has_just_left(leaving_team: StubTeam) -> None:
    leaving_team.jobs["worker-3"].gone = True
    leaving_team.job.resize(1.5)
    leaving_team.job.resize(1.2)
    leaving_team.recover("worker-3")
    assert becomes_true(lambda: leaving_team.job.usage() is not None and leaving_team.job.cores == pytest.approx(1.2))


def test_wait_includes_workers_code_after_the_training_loop(team: StubTeam) -> None:
    for name in ("worker-0", "worker-1"):
        team.jobs[name].lines.append(Progress(900, 900).to_line())
    team.job.read_lines()
    team.jobs["ps-0"].exit_code = 0
    for _ in range(3):
        assert not team.job.wait(0.0)
    assert team.jobs["worker-0"].exit_code is None
    team.jobs["worker-0"].exit_code = team.jobs["worker-1"].exit_code = 0
    assert team.job.wait(0.0)
    assert team.job.status().exit_code == 0


def test_worker_that_is_frozen_after_the_end_is_named_and_not_awaited_forever(team: StubTeam) -> None:
    for name in ("worker-0", "worker-1"):
        team.jobs[name].lines.append(Progress(900, 900).to_line())
    team.job.read_lines()
    team.jobs["ps-0"].exit_code = 0
    assert not team.job.wait(0.0)
    assert team.job.read_lines() == []
    for now_s in (9.0, 10.0):
        team.now_s = now_s
        assert not team.job.wait(0.0)
    named = "training ended 9 s ago: waiting for the end of worker-0 (paused), worker-1 (paused)"
    assert team.job.read_lines() == [named], "once"
    team.now_s = 1000.0
    assert not team.job.wait(0.0), "no worker has a result"
    team.jobs["worker-1"].exit_code = 0
    assert not team.job.wait(0.0)
    team.now_s += 61.0
    assert team.job.wait(0.0)
    assert team.job.read_lines() == ["another worker's result is complete: ending worker-0 without a result"]
    assert team.job.status().exit_code == 0
    assert team.job._members.successful_job() is team.jobs["worker-1"]


def test_worker_whose_machine_is_down_at_the_end_is_not_awaited_forever(team: StubTeam) -> None:
    for name in ("worker-0", "worker-1"):
        team.jobs[name].lines.append(Progress(900, 900).to_line())
    team.job.read_lines()
    team.jobs["ps-0"].exit_code = 0
    team.jobs["worker-0"].answers = False
    assert not team.job.wait(0.0)
    team.now_s = 9.0
    assert not team.job.wait(0.0)
    named = "training ended 9 s ago: waiting for the end of worker-0 (does not respond), worker-1 (paused)"
    assert team.job.read_lines() == [named]
    with pytest.raises(RuntimeUnavailableError):
        team.job.status()
    team.jobs["worker-1"].exit_code = 0
    assert not team.job.wait(0.0)
    team.now_s += 61.0
    assert team.job.wait(0.0)
    assert team.job.status().exit_code == 0
    assert team.job._members.successful_job() is team.jobs["worker-1"]


@pytest.mark.parametrize("has_loop", [False, True])
def test_script_that_ends_before_its_training_fails_the_job_for_good(team: StubTeam, has_loop: bool) -> None:
    for name in ("worker-0", "worker-1"):
        team.jobs[name].exit_code, team.jobs[name].finished_s = 0, 100.0
        team.jobs[name].lines += [Progress(0, 900, event="start").to_line()] * has_loop
    for total, wall_s in ((900, 99.0), (900, 100.0)):  # older than the end of the workers: training may be over
        team.jobs["ps-0"].lines.append(Progress(0, total, wall_s=wall_s).to_line())
        team.job.read_lines()
        team.job.usage()
    team.jobs["ps-0"].lines.append(Progress(900, 900, wall_s=101.0).to_line())
    team.job.read_lines()
    team.job.usage()
    team.jobs["ps-0"].lines.append(Progress(0, 900, wall_s=101.0).to_line())
    team.job.read_lines()
    reason = (
        r"left its loop over track\(...\) before the end" if has_loop else r"ended without a loop over track\(...\)"
    )
    with pytest.raises(UnsuitableCodeError, match=f"worker: the script {reason}"):
        team.job.usage()


def test_job_continues_while_one_worker_has_not_ended(team: StubTeam) -> None:
    team.jobs["worker-0"].exit_code, team.jobs["worker-0"].finished_s = 0, 100.0
    team.jobs["ps-0"].lines.append(Progress(0, 900, wall_s=101.0).to_line())
    team.job.read_lines()
    team.job.usage()


def test_code_that_a_worker_rejects_fails_the_job_for_good_with_the_reason(team: StubTeam) -> None:
    team.jobs["worker-1"].exit_code = EXIT_REJECTED
    team.jobs["worker-1"].lines.append("paceline: loader: got 'a stream'")
    with pytest.raises(
        UnsuitableCodeError, match=r"worker-1: failed, exit code 7. .*\npaceline: loader: got 'a stream'"
    ):
        team.job.usage()
    assert team.jobs["worker-1"].starts == 1


@pytest.mark.parametrize("read", [True, False], ids=["unread reports", "no reports"])
def test_workers_that_trained_since_the_last_step_keep_their_output(team: StubTeam, read: bool) -> None:
    if read:
        team.jobs["worker-0"].lines.append(Progress(900, 900).to_line())
    team.jobs["ps-0"].exit_code = 0
    team.job.wait(0.0)
    assert becomes_true(lambda: team.jobs["worker-1"].removed or not read)
    assert not team.jobs["worker-0"].removed
    assert "worker-0" not in team.job._members.leaving
    team.jobs["worker-0"].exit_code = team.jobs["worker-1"].exit_code = 0
    assert team.job.wait(0.0)
    assert team.job.status().exit_code == 0


@pytest.mark.parametrize(("code", "left"), [(0, False), (EXIT_TERMINATED, True)])
def test_reattached_team_keeps_the_model_of_a_worker_that_has_ended(code: int, left: bool) -> None:
    jobs = {name: StubJob(1.0) for name in ("ps-0", "worker-0", "worker-1")}
    jobs["worker-1"].exit_code = code
    containers = Mock(labels_of=Mock(return_value={LABEL_TEAM: "team"}))
    containers.find_all.return_value = [(job, {LABEL_NODE: name}, 1.0) for name, job in jobs.items()]
    team = TeamRuntime(containers, Mock()).reattach("id of ps-0")
    assert team.cores == pytest.approx(2.0 if left else 3.0)
    assert jobs["worker-1"].removed is left


def test_team_that_a_retry_restarts_does_not_grow_to_its_budget_at_once() -> None:
    jobs = {name: StubJob(1.0) for name in ("ps-0", "worker-0", "worker-1")}
    for job in jobs.values():
        job.exit_code = 1
    containers = Mock(labels_of=Mock(return_value={LABEL_TEAM: "team"}))
    containers.find_all.return_value = [(job, {LABEL_NODE: name}, 1.0) for name, job in jobs.items()]
    runtime = TeamRuntime(containers, Mock())
    team = runtime.reattach("id of ps-0")
    handle = Mock(job=team, store=MemoryState(), call_engine=lambda call: call())
    earlier = EarlierJob(handle, Mock(team=lambda job: job))
    assert earlier.restart(runtime, JobSpec("team", ["python"], 12.0)) is team
    assert [(job.starts, job.cores) for job in jobs.values()] == [(2, 1.0)] * 3
    assert team._scaling.budget == 12.0


def test_late_parameter_server_does_not_block_the_end(team: StubTeam) -> None:
    late = StubJob(1.0)
    team.job._members.nodes["ps-1"] = TeamMember(late, 1.0)
    for name in ("ps-0", "worker-0", "worker-1"):
        team.jobs[name].exit_code = 0
    assert team.job.wait(0.0)
    assert late.exit_code is None, "it still tries to reach the first parameter server"


def test_death_of_the_parameter_server_ends_the_job(team: StubTeam) -> None:
    team.jobs["ps-0"].exit_code = 137
    assert team.job.wait(0.0)
    assert team.job.status().exit_code == 137


def test_cores_of_a_resize_without_a_response_count_as_allocated() -> None:
    team = StubTeam(budget=4.5)
    team.jobs["worker-1"].answers = False
    with pytest.raises(RuntimeUnavailableError):
        team.step(used=0.99)  # the engine does not respond to the increase
    team.jobs["worker-1"].answers = True
    team.job.resize(3.0)
    assert team.cores == pytest.approx(3.0)


def test_failed_stop_or_removal_does_not_affect_other_nodes(team: StubTeam) -> None:
    team.jobs["ps-0"].error = UNREACHABLE
    with pytest.raises(RuntimeUnavailableError):
        team.job.stop()
    assert team.jobs["worker-0"].exit_code == team.jobs["worker-1"].exit_code == 143
    with pytest.raises(RuntimeUnavailableError):
        team.job.remove()
    assert team.jobs["worker-0"].removed
    assert team.removals == 1


def test_server_that_lost_a_shard_is_restarted_a_few_times(team: StubTeam) -> None:
    for starts in (2, 3, 4):
        team.jobs["ps-0"].exit_code = EXIT_STATE_LOST
        assert not team.job.wait(0.0)
        assert team.jobs["ps-0"].starts == starts
    team.jobs["ps-0"].exit_code = EXIT_STATE_LOST
    for worker in ("worker-0", "worker-1"):
        team.jobs[worker].exit_code = 6
    assert team.job.wait(0.0)
    assert team.job.status().exit_code == EXIT_STATE_LOST


@pytest.mark.parametrize(("name", "code"), [("ps-0", EXIT_STATE_LOST), ("worker-0", 1)])
def test_node_is_restarted_as_long_as_it_makes_progress(team: StubTeam, name: str, code: int) -> None:
    node = team.jobs[name]
    for done in range(1, 8):
        node.lines.append(Progress(done, 900).to_line())
        team.job.read_lines()
        node.exit_code = code
        team.job.usage() if name == "worker-0" else team.job.wait(0.0)
        assert (node.starts, node.exit_code) == (done + 1, None)


@pytest.mark.parametrize(("name", "code"), [("ps-0", EXIT_STATE_LOST), ("worker-0", 1)])
def test_engine_that_cannot_start_nodes_yet_uses_up_no_restarts(team: StubTeam, name: str, code: int) -> None:
    node, control = team.jobs[name], team.job.usage if name == "worker-0" else lambda: team.job.wait(0.0)
    node.exit_code, node.restart_error = code, UNREACHABLE
    for _ in range(5):
        with pytest.raises(RuntimeUnavailableError):
            control()
    node.restart_error = None
    control()
    assert (node.starts, node.exit_code) == (2, None)
    assert sum(name in line for line in team.job.read_lines()) == 1, "the restart is logged once"


def test_resumed_team_has_all_nodes_within_the_current_budget(team: StubTeam) -> None:
    team.job.stop()
    team.job.usage()
    assert all(job.starts == 1 for job in team.jobs.values()), "no node is restarted during the preemption"
    team.job.resize(1.5)
    team.job.restart()
    assert all((job.starts, job.exit_code) == (2, None) for job in team.jobs.values())
    assert team.cores == pytest.approx(1.5)


def test_node_that_was_leaving_at_a_preemption_is_removed_on_resume(leaving_team: StubTeam) -> None:
    with pytest.raises(RuntimeUnavailableError):
        leaving_team.job.stop()
    leaving_team.jobs["worker-3"].error = None
    leaving_team.job.stop()
    leaving_team.job.restart()
    assert becomes_true(lambda: leaving_team.jobs["worker-3"].removed)
    assert becomes_true(
        lambda: leaving_team.job.usage() is not None and leaving_team.jobs["worker-0"].cores == pytest.approx(1.0)
    )


def test_job_continues_without_a_node_that_cannot_start(team: StubTeam) -> None:
    team.start_error = InvalidInputError("inputs", "s3://gone", "a readable object")
    team.step(used=0.5)
    assert team.job.configuration == TeamConfiguration((1.0,), (1.0, 1.0))
    assert [step.kind for step in team.job.take_steps()] == ["worker", "back"]
    team.job.usage()
    assert team.cores == pytest.approx(3.0)


def test_job_continues_without_a_new_worker_that_keeps_failing(team: StubTeam) -> None:
    """Too little memory for another worker must not end the job."""
    team.step(used=0.5)
    for _ in range(4):
        team.jobs["worker-3"].exit_code = 137
        team.job.usage()
    assert team.job.configuration == TeamConfiguration((1.0,), (1.0, 1.0))
    assert becomes_true(lambda: team.jobs["worker-2"].removed and team.jobs["worker-3"].removed)
    team.job.usage()
    assert team.cores == pytest.approx(3.0)
    last = team.job.take_steps()[-1]
    assert (last.kind, last.reason.partition(":")[0]) == ("back", "worker-3 keeps failing")


@pytest.mark.parametrize(("code", "starts"), [(1, 4), (EXIT_EXCLUDED, 1)])
def test_first_worker_that_keeps_failing_ends_the_job(team: StubTeam, code: int, starts: int) -> None:
    for _ in range(starts - 1):
        team.jobs["worker-1"].exit_code = code
        team.job.usage()
    team.jobs["worker-1"].exit_code = code
    with pytest.raises(TrainingFailedError, match="worker-1"):
        team.job.usage()
    assert team.jobs["worker-1"].starts == starts
