"""The contract of policies names what is wrong with a policy, and several subclasses can be tested in one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from paceline.allocate import Allocation, ClusterJob, ImpossibleAllocationError, Node, Placement, Policy
from paceline.contract import Reason
from paceline.testing.policy_contract import PolicyContract


class FirstComeFirstServed(Policy):
    """Gives each job its smallest count, in the order of arrival, up to a part of the pool."""

    name = "first"

    def __init__(self, part: float = 1.0, most: Callable[[int], int] = int, changes: bool = False) -> None:
        self.part, self.most, self.changes = part, most, changes

    def allocate(self, jobs: Sequence[ClusterJob], nodes: Sequence[Node], now_s: float, *, rescale: bool) -> Allocation:
        (node,) = nodes
        left, placements = self.most(node.devices), {}
        for job in jobs:
            count = job.speeds[node.kind].counts[0]
            if count <= left and count <= self.part * node.devices:
                placements[job.name] = Placement(node.name, count)
                left -= count
            if self.changes:
                job.work += 1.0
        return Allocation(placements, dict.fromkeys(placements, Reason("first", "came first")))


def contract_of(policy: Policy) -> PolicyContract:
    class Contract(PolicyContract):
        def make_policy(self) -> Policy:
            return policy

    return Contract()


def test_right_policies_pass_in_one_process() -> None:
    for _ in range(2):
        contract = contract_of(FirstComeFirstServed())
        contract.test_allocation_can_be_executed()
        contract.test_only_job_runs_at_once()
        contract.test_each_job_ends_or_is_rejected()


@pytest.mark.parametrize(
    ("wrong", "test", "error", "message"),
    [
        (
            FirstComeFirstServed(0.5),
            "test_only_job_runs_at_once",
            AssertionError,
            "free devices are enough for the job",
        ),
        (FirstComeFirstServed(0.5), "test_each_job_ends_or_is_rejected", Exception, "waiting: job-0"),
        (
            FirstComeFirstServed(most=lambda devices: devices + 1),
            "test_allocation_can_be_executed",
            ImpossibleAllocationError,
            "more devices are allocated than the node has",
        ),
        (FirstComeFirstServed(changes=True), "test_jobs_are_not_changed", AssertionError, "has changed the jobs"),
    ],
)
def test_wrong_policy_fails(wrong: Policy, test: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        getattr(contract_of(wrong), test)()
