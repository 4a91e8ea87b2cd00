"""What a team does when engines and nodes fail it. Its nodes are stand-ins that fail when they are told to."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from paceline.elastic import Options, Scaling, TeamConfiguration, TeamSample
from paceline.elastic.meter import Meter
from paceline.elastic.team import TeamJob, TeamMember
from paceline.errors import InvalidInputError, JobLostError, RuntimeUnavailableError, TrainingFailedError
from paceline.runtime.base import JobStatus, Usage
from paceline.train.job import EXIT_BROKEN, EXIT_LEFT_OUT
from paceline.train.progress import Progress

AWAY = RuntimeUnavailableError("the engine is away")


class Stub:
    """A job that does as it is told, until it is told to fail."""

    def __init__(self, cores: float) -> None:
        self.cores, self.exit_code, self.gone, self.removed, self.starts = cores, None, False, False, 1
        self.fails: Exception | None = None
        self.answers = True
        self.refused = 0
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
        if self.gone:
            return JobStatus("gone")
        return JobStatus("running") if self.exit_code is None else JobStatus("exited", self.exit_code)

    def restart(self) -> None:
        self.exit_code, self.starts = None, self.starts + 1

    def stop(self, grace_s: float = 5.0) -> None:
        if self.fails:
            self.refused += 1
            raise self.fails
        self.exit_code = 143 if self.exit_code is None else self.exit_code

    def remove(self) -> None:
        if self.fails:
            raise self.fails
        self.removed = True

    def usage(self) -> Usage:
        if self.gone:
            raise JobLostError("it was removed")
        return Usage(0.0, 0, 0.0)

    def read_lines(self) -> list[str]:
        lines, self.lines = self.lines, []
        return lines


class Team:
    """A team of stand-ins: a parameter server and so many workers, each on one core."""

    def __init__(self, workers: int = 2, budget: float | None = None) -> None:
        configuration = TeamConfiguration((1.0,), (1.0,) * workers)
        self.scaling = Scaling(budget or configuration.cores, Options(stable_samples=2), configuration=configuration)
        self.jobs = {name: Stub(cores) for name, cores in configuration.nodes.items()}
        self.cannot_start: Exception | None = None
        self.swept = 0
        nodes = {name: TeamMember(job, job.cores) for name, job in self.jobs.items()}
        self.job = TeamJob(nodes, self.start, self.sweep, self.scaling, Meter())

    def start(self, name: str, cores: float) -> Stub:
        if self.cannot_start:
            raise self.cannot_start
        self.jobs[name] = Stub(cores)
        return self.jobs[name]

    def sweep(self) -> None:
        self.swept += 1

    def step(self, used: float) -> None:
        """Let scaling decide, as if nodes had used so much of their cores."""
        for _ in range(2):
            cores = self.scaling.configuration.nodes
            step = self.scaling.look(TeamSample(5.0, {name: used * one for name, one in cores.items()}, {"ps-0": 0.1}))
            if step is not None:
                self.job._take(step)
        self.job.usage()

    def lets_go(self, *names: str) -> None:
        """The nodes can be removed from now on, and are."""
        for name in names:
            self.jobs[name].fails = None
        assert comes_true(lambda: all(self.jobs[name].removed for name in names))

    @property
    def cores(self) -> float:
        return sum(job.cores for job in self.jobs.values() if not job.removed)


def comes_true(true: Callable[[], bool]) -> bool:
    """Whether a thread of the team does something, sooner or later."""
    give_up_s = time.monotonic() + 60
    while not true() and time.monotonic() < give_up_s:
        time.sleep(0.01)
    return true()


@pytest.fixture
def team(monkeypatch: pytest.MonkeyPatch) -> Team:
    monkeypatch.setattr("paceline.elastic.team._AGAIN_S", 0.01)
    return Team()


@pytest.fixture
def leaving(team: Team) -> Team:
    """A team whose worker-3 is to leave, and cannot be removed yet."""
    team.step(used=0.5)
    team.jobs["worker-3"].fails = AWAY
    team.step(used=0.5)
    return team


def test_workers_are_added_and_removed_and_one_that_cannot_be_removed_keeps_its_cores(team: Team) -> None:
    team.step(used=0.5)
    assert sorted(team.jobs) == ["ps-0", "worker-0", "worker-1", "worker-2", "worker-3"]
    assert team.cores == pytest.approx(3.0)
    newcomers = [team.jobs[name] for name in ("worker-2", "worker-3")]
    for job in newcomers:
        job.fails = AWAY
    team.step(used=0.5)  # no faster: taken back
    assert comes_true(lambda: min(job.refused for job in newcomers) > 1)
    team.job.usage()
    assert team.jobs["worker-0"].cores == pytest.approx(0.5), "not raised while the others may still run"
    team.lets_go("worker-2", "worker-3")
    assert comes_true(lambda: team.job.usage() is not None and team.jobs["worker-0"].cores == pytest.approx(1.0))
    assert team.cores == pytest.approx(3.0)
    assert [step.kind for step in team.job.take_steps()] == ["worker", "back"]


def test_a_budget_that_is_cut_while_a_node_leaves_takes_its_cores_as_well(leaving: Team) -> None:
    leaving.job.resize(1.0)
    assert leaving.cores <= 1.0 + 0.1 + 1e-6, "a twentieth of a core for each that is on its way out"
    leaving.lets_go("worker-3")


def test_a_team_that_is_found_again_goes_on_as_it_was_and_grows_step_by_step_or_has_less_at_once(team: Team) -> None:
    team.job.resume(6.0)
    assert (team.job.take_steps(), team.cores, team.job.cores) == ([], 3.0, 3.0)
    team.step(used=0.99)
    assert [step.kind for step in team.job.take_steps()] == ["up"]
    assert team.job.cores == pytest.approx(4.5)
    team.job.resume(1.5)
    assert team.cores == pytest.approx(1.5)


def test_what_a_worker_says_before_it_knows_what_it_had_done_is_no_progress(team: Team) -> None:
    for said, done in ((Progress(0, 900, event="start"), None), (Progress(500, 900), 500)):
        team.jobs["worker-1"].lines.append(said.to_line())
        team.job.read_lines()
        newest = team.job._nodes["worker-1"].newest
        assert (newest and newest.done) == done


def test_a_removed_node_is_started_again_and_the_others_can_still_be_lowered(team: Team) -> None:
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


def test_a_node_that_has_left_a_moment_ago_may_be_lowered_by_who_does_not_know_it_yet(leaving: Team) -> None:
    leaving.jobs["worker-3"].gone = True
    leaving.job.resize(1.5)
    leaving.job.resize(1.2)
    leaving.lets_go("worker-3")
    assert comes_true(lambda: leaving.job.usage() is not None and leaving.job.cores == pytest.approx(1.2))


def test_code_after_the_loop_may_take_its_time_if_the_parameter_server_has_ended_well(team: Team) -> None:
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


def test_a_parameter_server_that_joins_too_late_does_not_block_the_end(team: Team) -> None:
    late = Stub(1.0)
    team.job._nodes["ps-1"] = TeamMember(late, 1.0)
    for name in ("ps-0", "worker-0", "worker-1"):
        team.jobs[name].exit_code = 0
    assert team.job.wait(0.0)
    assert late.exit_code is None, "it still looks for the first one"


def test_a_parameter_server_that_dies_is_not_mourned(team: Team) -> None:
    team.jobs["ps-0"].exit_code = 137
    assert team.job.wait(0.0)
    assert team.job.status().exit_code == 137


def test_what_an_engine_did_not_answer_may_have_been_done() -> None:
    team = Team(budget=4.5)
    team.jobs["worker-1"].answers = False
    with pytest.raises(RuntimeUnavailableError):
        team.step(used=0.99)  # raised, but for the answer
    team.jobs["worker-1"].answers = True
    team.job.resize(3.0)
    assert team.cores == pytest.approx(3.0)


def test_a_node_that_cannot_be_stopped_or_removed_keeps_no_other_from_it_and_is_swept_up(team: Team) -> None:
    team.jobs["ps-0"].fails = AWAY
    with pytest.raises(RuntimeUnavailableError):
        team.job.stop()
    assert team.jobs["worker-0"].exit_code == team.jobs["worker-1"].exit_code == 143
    with pytest.raises(RuntimeUnavailableError):
        team.job.remove()
    assert team.jobs["worker-0"].removed
    assert team.swept == 1


def test_a_server_that_has_lost_a_part_of_the_state_is_started_again_a_few_times(team: Team) -> None:
    for starts in (2, 3, 4):
        team.jobs["ps-0"].exit_code = EXIT_BROKEN
        assert not team.job.wait(0.0)
        assert team.jobs["ps-0"].starts == starts
    team.jobs["ps-0"].exit_code = EXIT_BROKEN
    for worker in ("worker-0", "worker-1"):
        team.jobs[worker].exit_code = 6
    assert team.job.wait(0.0)
    assert team.job.status().exit_code == EXIT_BROKEN


def test_a_team_that_stood_still_goes_on_with_all_its_nodes_on_what_it_may_have_by_then(team: Team) -> None:
    team.job.stop()
    team.job.usage()
    assert all(job.starts == 1 for job in team.jobs.values()), "nobody is started again meanwhile"
    team.job.resize(1.5)
    team.job.restart()
    assert all((job.starts, job.exit_code) == (2, None) for job in team.jobs.values())
    assert team.cores == pytest.approx(1.5)


def test_a_node_that_was_on_its_way_out_when_a_team_stood_still_is_removed_afterwards(leaving: Team) -> None:
    with pytest.raises(RuntimeUnavailableError):
        leaving.job.stop()
    leaving.jobs["worker-3"].fails = None
    leaving.job.stop()
    leaving.job.restart()
    assert comes_true(lambda: leaving.jobs["worker-3"].removed)
    assert comes_true(lambda: leaving.job.usage() is not None and leaving.jobs["worker-0"].cores == pytest.approx(1.0))


def test_a_training_goes_on_without_a_node_that_cannot_be_started(team: Team) -> None:
    team.cannot_start = InvalidInputError("inputs", "s3://gone", "something that can be read")
    team.step(used=0.5)
    assert team.job.configuration == TeamConfiguration((1.0,), (1.0, 1.0))
    assert [step.kind for step in team.job.take_steps()] == ["worker", "back"]
    team.job.usage()
    assert team.cores == pytest.approx(3.0)


def test_a_training_goes_on_without_a_worker_that_has_come_and_dies_again_and_again(team: Team) -> None:
    """As where it is the one for which the machine's memory does not suffice."""
    team.step(used=0.5)
    for _ in range(4):
        team.jobs["worker-3"].exit_code = 137
        team.job.usage()
    assert team.job.configuration == TeamConfiguration((1.0,), (1.0, 1.0))
    assert comes_true(lambda: team.jobs["worker-2"].removed and team.jobs["worker-3"].removed)
    team.job.usage()
    assert team.cores == pytest.approx(3.0)
    last = team.job.take_steps()[-1]
    assert (last.kind, last.reason.partition(":")[0]) == ("back", "worker-3 cannot stay")


@pytest.mark.parametrize(("code", "starts"), [(1, 4), (EXIT_LEFT_OUT, 1)])
def test_a_worker_that_dies_again_and_again_ends_the_training_with_its_name(team: Team, code: int, starts: int) -> None:
    for _ in range(starts - 1):
        team.jobs["worker-1"].exit_code = code
        team.job.usage()
    team.jobs["worker-1"].exit_code = code
    with pytest.raises(TrainingFailedError, match="worker-1"):
        team.job.usage()
    assert team.jobs["worker-1"].starts == starts
