"""The contract of all policies, as tests that the author of a policy runs. Needs pytest and Hypothesis.

Subclass ``PolicyContract`` as a test class that makes the policy::

    from paceline.testing.policy_contract import PolicyContract

    class TestMyPolicy(PolicyContract):
        def make_policy(self):
            return MyPolicy()
"""

from __future__ import annotations

from dataclasses import asdict
from math import inf
from re import fullmatch

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paceline.allocate import DEVICE, ClusterJob, Node, Placement, Policy, Speeds, check
from paceline.contract import Reason
from paceline.simulate.cluster import Arrival, Simulation

_SPEEDS = (Speeds.linear(3), Speeds.doubling_efficiency(8), Speeds((2,), (1.5,)), Speeds((1, 2, 3), (1.0, 1.6, 1.2)))
Situation = tuple[list[ClusterJob], Node, float]


@st.composite
def situations(draw: st.DrawFn) -> Situation:
    """Draw the jobs of a pool, some of which run, the pool, and the time in seconds."""
    node = Node("pool", draw(st.integers(2, 12)))
    now_s, free = 1000.0, node.devices
    jobs = []
    arrivals_s = sorted(draw(st.lists(st.floats(0.0, now_s), max_size=8)))
    for number, arrived_s in enumerate(arrivals_s):
        speeds = draw(st.sampled_from([one for one in _SPEEDS if one.counts[0] <= node.devices]))
        slack_s = draw(st.none() | st.floats(-500.0, 5000.0))
        job = ClusterJob(
            f"job-{number}",
            arrived_s,
            draw(st.floats(0.0, 2000.0)),
            {DEVICE: speeds},
            deadline_s=None if slack_s is None else now_s + slack_s,
            weight=draw(st.floats(0.0, 5.0)),
            since_s=now_s,
            change_s=draw(st.none() | st.floats(0.0, 60.0)),
        )
        counts = [count for count in speeds.counts if count <= free]
        if draw(st.booleans()) and counts:
            devices = draw(st.sampled_from(counts))
            job.held, job.started_s, job.speed = Placement(node.name, devices), arrived_s, speeds.at(devices)
            free -= devices
        jobs.append(job)
    return jobs, node, now_s


# The tests of several subclasses run in one process.
_in_any_class = settings(suppress_health_check=[HealthCheck.differing_executors])


class PolicyContract:
    """Tests of a :class:`paceline.allocate.Policy` on one pool. A subclass implements ``make_policy``."""

    def make_policy(self) -> Policy:
        """Return a new policy."""
        raise NotImplementedError

    @_in_any_class
    @given(situation=situations(), rescale=st.booleans())
    def test_allocation_can_be_executed(self, situation: Situation, rescale: bool) -> None:
        """No job gets devices that do not exist, or a number that it cannot use."""
        jobs, node, now_s = situation
        policy = self.make_policy()
        for at_s in (now_s, now_s + 10.0):  # a policy may remember its last decision
            check(policy.allocate(jobs, [node], at_s, rescale=rescale), jobs, [node])

    @_in_any_class
    @given(situation=situations())
    def test_decision_is_about_these_jobs_only(self, situation: Situation) -> None:
        """Reasons, late and rejected jobs and reservations name jobs of the pool."""
        jobs, node, now_s = situation
        policy, names = self.make_policy(), {job.name for job in jobs}
        allocation = policy.allocate(jobs, [node], now_s, rescale=True)
        named = {*allocation.reasons, *allocation.late, *allocation.rejected, *policy.reservations}
        assert named <= names, "the decision names a job that is not in the pool"
        assert not (policy.shares_pool and allocation.rejected), "a policy with shares_pool rejects no job"
        for reason in allocation.reasons.values():
            assert isinstance(reason, Reason)
            assert fullmatch("[a-z][a-z0-9_]*", reason.kind)
            assert reason.text
        assert allocation.replan_s > now_s

    @_in_any_class
    @given(situation=situations())
    def test_jobs_are_not_changed(self, situation: Situation) -> None:
        """The jobs belong to the caller."""
        jobs, node, now_s = situation
        before = [asdict(job) for job in jobs]
        self.make_policy().allocate(jobs, [node], now_s, rescale=True)
        assert [asdict(job) for job in jobs] == before, "allocate() has changed the jobs"

    @_in_any_class
    @given(situation=situations())
    def test_equal_policies_decide_equally(self, situation: Situation) -> None:
        """A decision can be repeated."""
        jobs, node, now_s = situation
        first, second = (self.make_policy().allocate(jobs, [node], now_s, rescale=True) for _ in range(2))
        assert first == second, "two new policies decide differently about the same jobs"

    def test_pool_without_jobs_has_no_placements(self) -> None:
        """There is nothing to place."""
        assert self.make_policy().allocate([], [Node("pool", 4)], 0.0, rescale=True).placements == {}

    @_in_any_class
    @given(devices=st.integers(1, 12), work=st.floats(1.0, 1000.0), smallest=st.integers(1, 12))
    def test_only_job_runs_at_once(self, devices: int, work: float, smallest: int) -> None:
        """A job does not wait in an empty pool, even if it needs all devices."""
        counts = tuple(range(min(smallest, devices), devices + 1))
        speeds = Speeds(counts, tuple(map(float, counts)))
        job = ClusterJob("only", 0.0, work, {DEVICE: speeds}, requested=counts[0])
        allocation = self.make_policy().allocate([job], [Node("pool", devices)], 0.0, rescale=True)
        assert "only" in allocation.placements, f"{counts[0]} of {devices} free devices are enough for the job"

    @_in_any_class
    @given(
        rows=st.lists(
            st.tuples(
                st.floats(0.0, 100.0),
                st.floats(1.0, 500.0),
                st.just(inf) | st.floats(1.0, 900.0),
                st.sampled_from((Speeds.doubling_efficiency(4), Speeds((3, 4), (2.0, 2.5)), Speeds((4,), (3.0,)))),
            ),
            max_size=6,
        )
    )
    def test_each_job_ends_or_is_rejected(self, rows: list[tuple[float, float, float, Speeds]]) -> None:
        """Each job ends, or the policy rejects it."""
        arrivals, arrives_s = [], 0.0
        for number, (gap_s, work, slack_s, speeds) in enumerate(rows):
            arrives_s += gap_s
            deadline_s = None if slack_s == inf else arrives_s + slack_s
            requested = speeds.counts[0]
            arrivals.append(
                Arrival(f"job-{number}", arrives_s, work, {DEVICE: speeds}, deadline_s=deadline_s, requested=requested)
            )
        result = Simulation(arrivals, [Node("pool", 4)], self.make_policy(), period_s=60.0).run()
        assert result.jobs == len(arrivals)
        assert result.done + result.rejected == len(arrivals)
