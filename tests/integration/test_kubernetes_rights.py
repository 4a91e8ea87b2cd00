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
import yaml
from kubernetes.client import ApiClient, CoreV1Api, RbacAuthorizationV1Api
from tests.conftest import connect_cluster
from tests.integration.jobs import PodHarness
from tests.integration.kubernetes_guide import FILES
from tests.waiting import LONG_S

from paceline.runtime import TeamNetwork
from paceline.runtime.kubernetes import KubernetesRuntime
from paceline.testing.runtime_contract.harness import RESUMES, read_to_end, wait_for_line

pytestmark = pytest.mark.kubernetes
ROLE = next(one for one in yaml.safe_load_all(FILES["paceline.yaml"]) if one["kind"] == "Role")
OPTIONAL = ("limitranges", "resourcequotas")  # without them, rules of the namespace show at the start of a pod
RIGHTS = [
    (group, resource, verb)
    for rule in ROLE["rules"]
    for group in rule["apiGroups"]
    for resource in rule["resources"]
    if resource not in OPTIONAL
    for verb in rule["verbs"]
]


def rules_without(group: str, resource: str, verb: str) -> list[dict[str, Any]]:
    """Return the rules of the guide's role without one right."""
    rules = []
    for rule in copy.deepcopy(ROLE["rules"]):
        if group in rule["apiGroups"] and resource in rule["resources"]:
            others = {**rule, "resources": [one for one in rule["resources"] if one != resource]}
            rules += [others] if others["resources"] else []
            rule = {**rule, "resources": [resource], "verbs": [one for one in rule["verbs"] if one != verb]}
        rules += [rule] if rule["verbs"] else []
    return rules


def account(namespace: str, name: str, rules: list[dict[str, Any]]) -> KubernetesRuntime:
    """Return a runtime with a new account of the namespace that has these rights."""
    admin = connect_cluster()
    CoreV1Api(admin).create_namespaced_service_account(namespace, {"metadata": {"name": name}})
    rbac = RbacAuthorizationV1Api(admin)
    rbac.create_namespaced_role(namespace, {"metadata": {"name": name}, "rules": rules})
    subject = {"kind": "ServiceAccount", "name": name, "namespace": namespace}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
    rbac.create_namespaced_role_binding(
        namespace, {"metadata": {"name": name}, "roleRef": reference, "subjects": [subject]}
    )
    request = {"spec": {"audiences": [], "expirationSeconds": 3600}}
    token = CoreV1Api(admin).create_namespaced_service_account_token(name, namespace, request).status.token

    def connect() -> ApiClient:
        configuration = connect_cluster().configuration
        configuration.cert_file = configuration.key_file = None
        configuration.api_key = {"authorization": f"Bearer {token}"}
        return ApiClient(configuration)

    return KubernetesRuntime(connect, namespace=namespace)


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
    harness = PodHarness(namespace, trainer_image, tmp_path)
    yield harness
    harness.remove_leftovers()


def test_rights_of_the_guide_are_enough(pods: PodHarness, tmp_path: Path) -> None:
    exercise(account(pods.namespace, "all", ROLE["rules"]), pods, "all", tmp_path)


@pytest.mark.parametrize(("group", "resource", "verb"), RIGHTS, ids=["-".join(filter(None, one)) for one in RIGHTS])
def test_missing_right_is_named(
    pods: PodHarness, tmp_path: Path, caplog: pytest.LogCaptureFixture, group: str, resource: str, verb: str
) -> None:
    """The error is raised, or, if it only concerns the job's output, logged."""
    name = "-".join([verb, *resource.split("/")])
    runtime = account(pods.namespace, name, rules_without(group, resource, verb))
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
