"""Each right in the guide's role is necessary, except optional ones: without it, an error names it."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.integration.clusters import account
from tests.integration.jobs import PodHarness
from tests.integration.kubernetes_guide import guide_rules
from tests.waiting import LONG_S

from paceline.runtime import TeamNetwork
from paceline.runtime.kubernetes import KubernetesRuntime
from paceline.testing.runtime_contract.harness import RESUMES, read_to_end, wait_for_line

pytestmark = pytest.mark.kubernetes
OPTIONAL = ("limitranges", "resourcequotas")  # without them, rules of the namespace show at the start of a pod
RIGHTS = [
    (group, resource, verb)
    for rule in guide_rules()
    for group in rule["apiGroups"]
    for resource in rule["resources"]
    if resource not in OPTIONAL
    for verb in rule["verbs"]
]


def rules_without(group: str, resource: str, verb: str) -> list[dict[str, Any]]:
    """Return the rules of the guide's role without one right."""
    rules = []
    for rule in copy.deepcopy(guide_rules()):
        if group in rule["apiGroups"] and resource in rule["resources"]:
            others = {**rule, "resources": [one for one in rule["resources"] if one != resource]}
            rules += [others] if others["resources"] else []
            rule = {**rule, "resources": [resource], "verbs": [one for one in rule["verbs"] if one != verb]}
        rules += [rule] if rule["verbs"] else []
    return rules


def exercise(runtime: KubernetesRuntime, pods: PodHarness, name: str, folder: Path) -> None:
    """Do all that Paceline does with a job of a team: start, resize, stop, find, replace, collect, remove."""
    team = TeamNetwork(f"{pods.mark}-{name}", "it")
    spec = pods.spec(RESUMES, name=name, team_network=team)
    job = runtime.start(spec)
    wait_for_line(job, "saved")
    job.resize(0.7)
    job.save_record({"owner": "a"})
    job.stop(0)
    assert job.wait(LONG_S)
    found = runtime.find_job(spec.name, {})
    assert found is not None
    job.close()
    new = runtime.replace(found, replace(spec, environment={"TRY": "2"}))
    assert read_to_end(new) == ["resumed at 41"]
    new.collect(folder / "output")
    assert new.id in [one for one, _ in runtime.jobs()]
    new.remove()


@pytest.fixture
def pods(namespace: str, trainer_image: str, tmp_path: Path) -> Iterator[PodHarness]:
    """Yield a harness for pods, and remove those that an account may not remove."""
    harness = PodHarness(namespace, trainer_image, tmp_path)
    yield harness
    harness.remove_leftovers()


def test_rights_of_the_guide_are_enough(pods: PodHarness, tmp_path: Path) -> None:
    runtime = KubernetesRuntime(account(pods.namespace, guide_rules()), namespace=pods.namespace)
    exercise(runtime, pods, "all", tmp_path)


@pytest.mark.parametrize(("group", "resource", "verb"), RIGHTS, ids=["-".join(filter(None, one)) for one in RIGHTS])
def test_missing_right_is_named(
    pods: PodHarness, tmp_path: Path, caplog: pytest.LogCaptureFixture, group: str, resource: str, verb: str
) -> None:
    """The error is raised, or, if it only concerns the job's output, logged."""
    name = "-".join([verb, *resource.split("/")])
    connect = account(pods.namespace, rules_without(group, resource, verb), name)
    runtime = KubernetesRuntime(connect, namespace=pods.namespace)
    raised: list[str] = []

    def run() -> None:
        try:
            exercise(runtime, pods, name, tmp_path)
        except Exception as error:
            raised.append(str(error))

    running = threading.Thread(target=run, daemon=True)
    running.start()
    # Most rights are checked before a pod is created; a cluster's own words name the others.
    words = [f"without the rights: {verb} {resource}", f'cannot {verb} resource "{resource}" in API group "{group}"']
    end_s = time.monotonic() + LONG_S

    def text() -> str:
        return ("\n".join(raised) + caplog.text).replace("\\", "")

    def is_named() -> bool:
        return any(one in text() for one in words)

    while not is_named() and running.is_alive() and time.monotonic() < end_s:
        time.sleep(0.1)
    running.join(10)
    assert is_named(), raised or "nothing failed without this right: it is not necessary"
