"""Paceline's own policies keep the contract of policies, and are found by name."""

from __future__ import annotations

import pytest
from hypothesis import given

from paceline.allocate import Policy, make_policy
from paceline.contract import ReasonKind
from paceline.installed import POLICIES, installed
from paceline.testing.policy_contract import PolicyContract, Situation, situations

OWN = [name for name, entry in installed(POLICIES).items() if entry.value.startswith("paceline.")]


@pytest.mark.parametrize("name", OWN)
class TestInstalledPolicies(PolicyContract):
    @pytest.fixture(autouse=True)
    def choose(self, name: str) -> None:
        self.name = name

    def make_policy(self) -> Policy:
        return make_policy(self.name, iterations=20)  # the contract does not say how good a search is

    @given(situation=situations())
    def test_each_waiting_job_has_a_reason_of_the_guide(self, situation: Situation) -> None:
        jobs, node, now_s = situation
        allocation = self.make_policy().allocate(jobs, [node], now_s, rescale=True)
        assert {job.name for job in jobs} - allocation.placements.keys() <= allocation.reasons.keys()
        assert {reason.kind.upper() for reason in allocation.reasons.values()} <= ReasonKind.__members__.keys()
