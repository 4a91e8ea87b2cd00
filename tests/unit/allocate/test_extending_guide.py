"""The policy in docs/extending.md, as its readers copy it, keeps the contract of all policies."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
from tests.unit.airflow.strangers import install

from paceline.airflow.cli import main
from paceline.allocate import Policy
from paceline.installed import POLICIES, installed
from paceline.operators import ArbiterOperator
from paceline.testing.policy_contract import PolicyContract

NAME = "paceline_equal"
GUIDE = Path(__file__).parents[3] / "docs" / "extending.md"


@pytest.fixture(scope="module")
def guide(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """The module of the guide, installed with its entry point."""
    text = GUIDE.read_text()
    (code,) = re.findall(rf"```python\n# {NAME}\.py\n(.*?)```", text, re.DOTALL)
    (entry_point,) = re.findall(r'"paceline\.policies"\]\n(.*?)\n```', text)
    folder = tmp_path_factory.mktemp("package")
    (folder / f"{NAME}.py").write_text(code)
    install(folder, "equal", entry_point.replace('"', ""), POLICIES)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield import_module(NAME)
    sys.modules.pop(NAME)
    installed.cache_clear()


class TestGuide(PolicyContract):
    @pytest.fixture(autouse=True)
    def use(self, guide: ModuleType) -> None:
        self.guide = guide

    def make_policy(self) -> Policy:
        policy: Policy = self.guide.EqualShares()
        return policy


def test_policy_of_the_guide_is_simulated_by_name(guide: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "modelarts", "--jobs", "8", "--nodes", "8", "--policy", "equal"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[:4] == ["equal", "8", "of", "8"]


def test_arbiter_takes_the_policy_of_the_guide(guide: ModuleType) -> None:
    policy = guide.EqualShares()
    for value in ("equal", policy):
        arbiter = ArbiterOperator(task_id="arbiter", pool="training", devices=8, conn_id="airflow_api", policy=value)
        assert arbiter.policy == value
