"""Jobs as pods of a real cluster: what only a cluster does to them, and the rights that Paceline needs."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from benchmarks.pod_faults.proxy import ServerProxy, client_through
from kubernetes.client import ApiClient
from tests.conftest import connect_cluster

from paceline.errors import InvalidInputError, JobLostError, ResizePendingError, RuntimeUnavailableError
from paceline.runtime import Job, JobSpec
from paceline.runtime.kubernetes import KubernetesRuntime
from paceline.testing.runtime_contract.harness import RESUMES, WAITS, read_to_end, until, wait_for_line

from .clusters import account
from .jobs import PodHarness
from .kubernetes_guide import guide_block, guide_rules

pytestmark = pytest.mark.kubernetes
# Template of a pod that waits for a node.
NOWHERE = {"spec": {"nodeSelector": {"paceline/test": "nowhere"}}}


def pod_of(job: Job) -> str:
    return str(job.id.split("/")[2])


def evict(pods: PodHarness, name: str) -> None:
    body = {"metadata": {"name": name, "namespace": pods.namespace}}
    pods.core.create_namespaced_pod_eviction(name, pods.namespace, body)


def final_reason(job: Job) -> str:
    """Return why a job is gone; nothing while its pod exists."""
    with contextlib.suppress(RuntimeUnavailableError):  # the container has ended, and the pod not yet
        status = job.status()
        return status.reason if status.state == "gone" else ""
    return ""


def test_account_with_the_rights_of_the_guide_runs_a_job(pods: PodHarness, tmp_path: Path) -> None:
    runtime = KubernetesRuntime(account(pods.namespace, guide_rules()), namespace=pods.namespace)
    spec = pods.spec(RESUMES)
    job = runtime.start(spec)
    wait_for_line(job, "saved")
    job.resize(0.7)
    job.save_record({"owner": "a"})
    assert job.load_record() == {"owner": "a"}
    job.stop(0)
    assert job.wait(60)
    found = runtime.find_job(spec.name, {})
    assert found is not None
    new = runtime.replace(found, pods.spec(RESUMES, environment={"TRY": "2"}))
    assert read_to_end(new) == ["resumed at 41"]
    new.collect(tmp_path / "out")
    assert [one for one, _ in runtime.jobs()] == [new.id]
    new.remove()
    with pytest.raises(InvalidInputError, match=r"runtime: got 'list the nodes', expected what the cluster allows: .*"):
        runtime._cluster.call("list the nodes", "list_node")


def test_deleted_pod_is_gone_with_its_reason(pods: PodHarness) -> None:
    job = pods.runtime.start(pods.spec(WAITS))
    wait_for_line(job, "up")
    pods.core.delete_namespaced_pod(pod_of(job), pods.namespace, grace_period_seconds=0)
    assert job.wait(120)
    assert (job.status().state, job.status().reason) == ("gone", "the pod was deleted")
    job.remove()


def test_evicted_pod_ends_its_job_gracefully(pods: PodHarness) -> None:
    code = "import signal\nsignal.signal(signal.SIGTERM, lambda *_: exit(print('saving', flush=True)))\n"
    job = pods.runtime.start(pods.spec(code + "print('up', flush=True)\nwhile True: signal.pause()"))
    lines = wait_for_line(job, "up")
    evict(pods, pod_of(job))
    assert job.wait(120)
    assert lines + job.read_lines() == ["up", "saving"]
    assert until(lambda: final_reason(job)).startswith("the cluster removed the pod: EvictionByEvictionAPI")
    job.remove()


def test_last_checkpoint_of_an_evicted_pod_can_be_copied_before_the_pod_is_deleted(
    pods: PodHarness, tmp_path: Path
) -> None:
    code = """
    import os, pathlib, signal
    saved = pathlib.Path(os.environ["PACELINE_CHECKPOINT"], "step")
    if saved.exists(): exit(print("resumed at", saved.read_text(), flush=True))
    signal.signal(signal.SIGTERM, lambda *_: exit(saved.write_text("7")))
    print("up", flush=True)
    while True: signal.pause()
    """
    spec = pods.spec(textwrap.dedent(code))
    job = pods.runtime.start(spec)
    wait_for_line(job, "up")
    evict(pods, pod_of(job))
    assert job.wait(120)
    assert job.status().state == "gone"
    assert job.status().reason.startswith("the cluster removed the pod: EvictionByEvictionAPI")
    assert job.collect(tmp_path / "copy", "checkpoint") == ["step"]
    assert pods.runtime.find_job(spec.name, {}) is None
    assert pods.leftovers() == []
    new = pods.runtime.start(dataclasses.replace(spec, checkpoint=tmp_path / "copy"))
    assert read_to_end(new) == ["resumed at 7"]
    new.remove()


def test_start_of_a_pod_that_is_evicted_meanwhile_says_so(pods: PodHarness) -> None:
    runtime = KubernetesRuntime(connect_cluster, namespace=pods.namespace, template=NOWHERE)
    with ThreadPoolExecutor(1) as pool:
        started = pool.submit(runtime.start, pods.spec(WAITS))
        (pod,) = until(lambda: pods.core.list_namespaced_pod(pods.namespace).items)
        evict(pods, pod.metadata.name)
        with pytest.raises(RuntimeUnavailableError, match="did not start its job: the cluster removed the pod: Evict"):
            started.result()


def test_start_of_a_pod_that_is_evicted_before_its_job_says_so(
    pods: PodHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def evict_first(cluster: object, pod: str, spec: JobSpec) -> None:
        evict(pods, pod)
        until(lambda: not pods.core.list_namespaced_pod(pods.namespace).items)
        raise JobLostError("could not copy the job's files: there is no pod")

    monkeypatch.setattr("paceline.runtime.kubernetes._runtime.send_job", evict_first)
    with pytest.raises(RuntimeUnavailableError, match="did not start its job: the cluster removed the pod: Eviction"):
        pods.runtime.start(pods.spec(WAITS))


def test_evicted_job_that_stops_is_gone(pods: PodHarness) -> None:
    job = pods.runtime.start(pods.spec(WAITS))
    wait_for_line(job, "up")
    evict(pods, pod_of(job))
    assert job.wait(120)
    assert job.status().state == "gone"  # not "exited": nothing can restart it in its pod
    assert job.status().reason.startswith("the cluster removed the pod: EvictionByEvictionAPI")
    job.remove()


def test_output_of_a_finished_job_is_collected_from_its_evicted_pod(pods: PodHarness, tmp_path: Path) -> None:
    code = "import os\nopen(os.environ['PACELINE_OUTPUT'] + '/model', 'w').write('trained')"
    job = pods.runtime.start(pods.spec(code))
    assert job.wait(120)
    evict(pods, pod_of(job))
    assert job.collect(tmp_path / "out") == ["model"]
    assert (tmp_path / "out" / "model").read_text() == "trained"
    job.remove()


def test_resize_that_the_namespace_no_longer_allows_keeps_the_allocation(pods: PodHarness, tmp_path: Path) -> None:
    job = pods.runtime.start(pods.spec(WAITS, devices=0.5))
    wait_for_line(job, "up")
    limits = [{"type": "Container", "max": {"cpu": "600m"}}]
    pods.core.create_namespaced_limit_range(pods.namespace, {"metadata": {"name": "few"}, "spec": {"limits": limits}})

    def is_refused() -> bool:
        job.resize(0.55)
        try:
            job.resize(0.9)
        except ResizePendingError as error:
            return error.devices == 0.55 and "maximum cpu usage per Container is 600m" in error.reason
        return False  # the cluster has not read the new rule yet

    until(is_refused)
    job.stop(0)
    assert job.wait(60)
    assert job.collect(tmp_path / "out") == []  # although the pod gets no core for it
    job.remove()


def test_command_that_is_killed_with_its_container_may_be_repeated(pods: PodHarness) -> None:
    job = pods.runtime.start(pods.spec(WAITS))
    command = ["/bin/sh", "-c", "kill -KILL $$"]
    with pytest.raises(RuntimeUnavailableError, match="could not try: the command was killed"):
        list(pods.runtime._cluster.run("try", pod_of(job), command))
    job.remove()


def test_pod_that_the_node_has_ended_is_replaced_by_a_new_one(pods: PodHarness, caplog: Any) -> None:
    """As after an eviction for lack of disk space on the node: the pod remains, without its containers."""
    spec = pods.spec(WAITS)
    job = pods.runtime.start(spec)
    wait_for_line(job, "up")
    pods.core.patch_namespaced_pod(pod_of(job), pods.namespace, {"spec": {"activeDeadlineSeconds": 1}})
    assert job.wait(120)
    assert until(lambda: final_reason(job)).startswith("the pod has ended: Pod was active on the node longer than")
    job.close()
    assert pods.runtime.find_job(spec.name, {}) is None
    assert "whose files are lost: the pod has ended" in caplog.text
    new = pods.runtime.start(spec)
    wait_for_line(new, "up")
    new.remove()


def test_restarted_container_keeps_the_checkpoint(pods: PodHarness) -> None:
    """As when the kernel kills the whole container, or the node has been restarted."""
    job = pods.runtime.start(pods.spec(RESUMES))
    lines = wait_for_line(job, "saved")
    pods.run(job, "kill -TERM 1")
    assert job.wait(120)

    def runs_again() -> bool:
        (container,) = pods.core.read_namespaced_pod(pod_of(job), pods.namespace).status.container_statuses
        return bool(container.restart_count == 1 and container.state.running)

    until(runs_again)
    assert job.status().state == "exited"
    job.restart()
    assert lines + read_to_end(job) == ["resumed at 0", "saved", "resumed at 41"]
    job.remove()


def test_image_that_cannot_be_pulled_is_named_with_the_reason(pods: PodHarness) -> None:
    spec = pods.spec(WAITS, image="localhost:1/no-such-image:1")
    with pytest.raises(InvalidInputError, match=r"image: got 'localhost:1/no-such-image:1', expected an image that .*"):
        pods.runtime.start(spec)


def test_cluster_without_room_is_an_error_that_a_retry_may_solve(pods: PodHarness) -> None:
    runtime = KubernetesRuntime(connect_cluster, namespace=pods.namespace, template=NOWHERE, start_timeout_s=1.0)
    with pytest.raises(RuntimeUnavailableError, match=r"did not start within 1 s: Unschedulable: .*selector"):
        runtime.start(pods.spec(WAITS))
    assert pods.leftovers() == []


def test_pod_of_a_process_killed_at_the_start_can_be_found_and_removed(pods: PodHarness) -> None:
    spec = pods.spec(WAITS)
    imports = "from pathlib import PosixPath\nfrom paceline.runtime import JobSpec"
    code = f"{imports}\n{pods.constructor}\nruntime._template = {NOWHERE!r}\nruntime.start({spec!r})"
    with subprocess.Popen([sys.executable, "-c", code]) as starting:
        until(lambda: list(pods.runtime.jobs()))
        starting.kill()
    ((job_id, labels),) = pods.runtime.jobs()
    assert labels == spec.labels
    assert pods.runtime.find_job("another", {}) is None
    job = pods.runtime.reattach(job_id, labels)
    assert job.status().state == "running"
    job.remove()
    assert list(pods.runtime.jobs()) == []


def test_waiting_pod_of_a_killed_process_is_taken_over_by_the_next_one(pods: PodHarness) -> None:
    """It keeps its place in a queue."""
    template = {"spec": {"nodeSelector": {f"test/{pods.namespace}": "open"}}}  # the pod waits for such a node
    spec, others = pods.spec("print('ran')"), pods.spec("print('ran')", labels={"paceline.test": "others"})
    constructor = f"{pods.constructor[:-1]}, template={template!r})"
    imports = "from pathlib import PosixPath\nfrom paceline.runtime import JobSpec"
    with subprocess.Popen([sys.executable, "-c", f"{imports}\n{constructor}\nruntime.start({spec!r})"]) as starting:
        until(lambda: list(pods.runtime.jobs()))
        starting.kill()
    ((job_id, _),) = pods.runtime.jobs()
    runtime = KubernetesRuntime(connect_cluster, namespace=pods.namespace, template=template)
    assert runtime.find_job(spec.name, others.labels) is None
    assert [one for one, _ in pods.runtime.jobs()] == [job_id]
    (node, *_) = pods.core.list_node().items
    label = {f"test/{pods.namespace}": "open"}
    pods.core.patch_node(node.metadata.name, {"metadata": {"labels": label}})
    try:
        job = runtime.start(spec)
    finally:
        pods.core.patch_node(node.metadata.name, {"metadata": {"labels": dict.fromkeys(label)}})
    assert job.id == job_id
    assert read_to_end(job) == ["ran"]
    job.remove()


def test_rejected_token_is_replaced(pods: PodHarness) -> None:
    clients = []

    def connect() -> ApiClient:
        client = connect_cluster()
        if not clients:  # an account whose token has expired
            client.configuration.cert_file = client.configuration.key_file = None
            client.configuration.api_key = {"authorization": "Bearer expired"}
            client = ApiClient(client.configuration)
        clients.append(client)
        return client

    assert KubernetesRuntime(connect, namespace=pods.namespace).capacity() > 0
    assert len(clients) == 2


@pytest.fixture
def proxy() -> Iterator[ServerProxy]:
    made = ServerProxy(connect_cluster().configuration.host)
    yield made
    made.close()


def test_every_line_is_read_once_although_the_api_server_is_away_meanwhile(
    pods: PodHarness, proxy: ServerProxy
) -> None:
    runtime = KubernetesRuntime(lambda: client_through(proxy.url), namespace=pods.namespace)
    code = """
    import itertools, signal
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    for number in itertools.count():
        print(number, flush=True)
        if signal.sigtimedwait([signal.SIGUSR1], 0.01): break
    """
    job = runtime.start(pods.spec(textwrap.dedent(code)))
    lines: list[str] = []
    for wanted in (20, 60, 100):
        lines += wait_for_line(job, str(wanted))
        proxy.is_away = True
        proxy.cut()
        with pytest.raises(RuntimeUnavailableError, match="the cluster is not responding"):
            job.status()
        proxy.is_away = False
    lines += wait_for_line(job, "150")
    pods.signal(job, signal.SIGUSR1)
    lines += read_to_end(job)
    assert lines == [str(number) for number in range(len(lines))]
    job.remove()


def test_start_goes_on_after_its_watch_was_cut(pods: PodHarness, proxy: ServerProxy) -> None:
    label = {"paceline/test": pods.mark}
    connect = partial(client_through, proxy.url)
    runtime = KubernetesRuntime(connect, namespace=pods.namespace, template={"spec": {"nodeSelector": label}})
    spec, started = pods.spec(WAITS), []
    thread = threading.Thread(target=lambda: started.append(runtime.start(spec)))
    thread.start()

    def is_waiting() -> bool:
        found = pods.core.list_namespaced_pod(pods.namespace).items
        return any(one.reason == "Unschedulable" for pod in found for one in pod.status.conditions or [])

    until(is_waiting)
    proxy.cut()
    node = pods.core.list_node().items[0].metadata.name
    pods.core.patch_node(node, {"metadata": {"labels": label}})
    thread.join(300)
    pods.core.patch_node(node, {"metadata": {"labels": dict.fromkeys(label)}})
    (job,) = started
    wait_for_line(job, "up")
    job.remove()


def test_template_adds_to_the_pod(pods: PodHarness) -> None:
    (template,) = guide_block("gpu-pod.yaml")
    for name in ("nodeSelector", "tolerations", "imagePullSecrets"):
        assert template["spec"].pop(name)  # the test cluster has none of these
    runtime = KubernetesRuntime(connect_cluster, namespace=pods.namespace, template=template)
    job = runtime.start(pods.spec("import os\nprint(os.environ['HTTPS_PROXY'])"))
    assert read_to_end(job) == ["http://proxy:3128"]
    pod = pods.core.read_namespaced_pod(pod_of(job), pods.namespace)
    assert pod.metadata.labels["team"] == "forecasting"
    assert pod.metadata.labels["app.kubernetes.io/managed-by"] == "paceline"
    assert not pods.runtime.has_same_spec(job, pods.spec("import os\nprint(os.environ['HTTPS_PROXY'])"))
    job.remove()
