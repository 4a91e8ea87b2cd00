"""The constants of reasons are those of the guide, and each is given somewhere, with the values of its sentence."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path
from string import Formatter

from paceline.contract import Reason, ReasonKind

PROJECT = Path(__file__).parents[3]


def test_guide_lists_all_constants_with_their_sentences() -> None:
    section = (PROJECT / "docs" / "sharing.md").read_text().partition("## Reasons\n")[2]
    rows = re.findall(r"^\| `(\w+)` \| (.+) \|$", section, re.MULTILINE)
    assert rows == [(kind.name.lower(), re.sub(r":[^ }]+}", "}", kind.value)) for kind in ReasonKind]


def test_each_reason_is_given_with_the_values_of_its_sentence() -> None:
    values = defaultdict(set)
    for path in (PROJECT / "include" / "paceline").rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and ast.unparse(call.func) in ("Reason.of", "_reason_of"):
                for name in re.findall(r"ReasonKind\.(\w+)", ast.unparse(call.args[0])):
                    values[name].add(frozenset(str(keyword.arg) for keyword in call.keywords))
    fields = {kind.name: {name for _, name, _, _ in Formatter().parse(kind.value) if name} for kind in ReasonKind}
    assert values == {name: {frozenset(names)} for name, names in fields.items()}


def test_reasons_do_not_name_other_jobs_which_their_readers_may_not_know() -> None:
    assert [kind for kind in ReasonKind if "{job}" in kind.value] == []


def test_reason_counts_one_device_in_the_singular() -> None:
    reason = Reason.of(ReasonKind.AWAITS_RELEASE, devices=1)
    assert str(reason) == "gets 1 device as soon as other jobs have released enough"
    assert str(reason.in_units(1.5, "cores")) == "gets 1.5 cores as soon as other jobs have released enough"
    assert str(reason.in_units(1, "cores")) == "gets 1 core as soon as other jobs have released enough"
    assert "21 devices" in str(Reason.of(ReasonKind.AWAITS_RELEASE, devices=21))
