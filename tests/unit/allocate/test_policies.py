"""All installed policies keep the contract of policies, and are found by name."""

from __future__ import annotations

import pytest

from paceline.allocate import Policy, make_policy
from paceline.installed import POLICIES, installed
from paceline.testing.policy_contract import PolicyContract


@pytest.mark.parametrize("name", installed(POLICIES))
class TestInstalledPolicies(PolicyContract):
    @pytest.fixture(autouse=True)
    def choose(self, name: str) -> None:
        self.name = name

    def make_policy(self) -> Policy:
        return make_policy(self.name, iterations=20)  # the contract does not say how good a search is
