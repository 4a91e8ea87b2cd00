"""The faults. Each function starts a round's task, causes the fault, and returns what the task's log has to say."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable
from datetime import datetime, timezone
from functools import partial
from typing import Any

from benchmarks.pod_faults.rounds import Round, Strike, until
from benchmarks.pod_faults.task import BATCHES, Death

# What the log says of a job after that of a lost pod.
AFTER_LOSS = "The job of an earlier try is lost: kubernetes has no job of this task"
RESUMED = "Training resumes from the copy of the lost job's checkpoint"
_MOMENTS = ("training", "training", "start", "collecting")
_NODE_AWAY = "The job's output is not available now.*could not read the job's output: the cluster failed: "
_SERVER_AWAY = "could not [^:]*: the cluster is not responding"


def none(round_: Round) -> str:
    """Nothing happens."""
    round_.start()
    return "Training is running as kubernetes job"


def pod_deleted(round_: Round) -> str:
    """The pod is deleted, with or without its grace period."""
    moment = round_.start_until(*_MOMENTS)
    grace_s = round_.draw.choice((0, 5, 30))
    round_.has_grace = moment != "training" and grace_s > 0
    round_.details += f", grace {grace_s} s"
    _on_pod(round_, partial(round_.core.delete_namespaced_pod, grace_period_seconds=grace_s))
    round_.release()
    return _after_loss(moment, "was deleted")


def pod_evicted(round_: Round) -> str:
    """The pod is evicted, as before maintenance."""
    moment = round_.start_until(*_MOMENTS)
    round_.has_grace = moment != "training"
    _evict(round_)
    round_.release()
    return _after_loss(moment, "EvictionByEvictionAPI")


def node_drained(round_: Round) -> str:
    """The pod's node is cordoned, and the pod evicted."""
    moment = round_.start_until("training")
    node = round_.pod().spec.node_name
    cordon = {"spec": {"unschedulable": True}}
    uncordon = round_.ends.enter_context(contextlib.ExitStack())
    uncordon.callback(round_.core.patch_node, node, {"spec": {"unschedulable": None}})
    round_.core.patch_node(node, cordon)
    _evict(round_)
    round_.task.wait_for("EvictionByEvictionAPI")
    uncordon.close()  # the cluster may have no other node
    round_.release()
    return _after_loss(moment, "EvictionByEvictionAPI")


def kubelet_away(round_: Round) -> str:
    """The kubelet of the pod's node ends, and starts again."""
    commands = round_.commands
    round_.start_until("training")
    node = round_.pod().spec.node_name
    round_.run_command(commands.stop_node, node)
    starting = round_.ends.enter_context(contextlib.ExitStack())
    starting.callback(round_.run_command, commands.start_node, node)
    time.sleep(commands.away_s)
    starting.close()
    until(lambda: _is_ready(round_.core.read_node(node)))
    round_.release()
    return _NODE_AWAY


def server_away(round_: Round) -> str:
    """The API server ends, and starts again. The job ends meanwhile, or goes on."""
    commands = round_.commands
    proxy = None if commands.stop_server else round_.proxy()
    hold = round_.draw.randrange(2, BATCHES)
    round_.start(hold=hold, server=proxy and proxy.url).wait_for(f"waits before batch {hold}")
    ends_meanwhile = round_.draw.choice((True, False))
    round_.details = f"batch {hold}, the job {'ends meanwhile' if ends_meanwhile else 'goes on'}"
    if ends_meanwhile:
        round_.release_once()
    if proxy is not None:
        proxy.is_away = True
        proxy.cut()
        round_.task.wait_for(_SERVER_AWAY)
        proxy.is_away = False
    else:
        round_.run_command(commands.stop_server)
        starting = round_.ends.enter_context(contextlib.ExitStack())
        starting.callback(round_.run_command, commands.start_server)
        time.sleep(commands.away_s)
        starting.close()
    round_.release()
    return _SERVER_AWAY


def log_cut(round_: Round) -> str:
    """All connections to the API server are cut, several times."""
    proxy, cuts = round_.proxy(), round_.draw.randint(2, 6)
    hold = round_.draw.randrange(2, BATCHES)
    round_.details = f"batch {hold}, {cuts} cuts"
    task = round_.start(hold=hold, server=proxy.url)
    task.wait_for(f"waits before batch {hold}")
    for _ in range(cuts):
        time.sleep(round_.draw.uniform(0.0, 1.5))
        proxy.cut()
    round_.release()
    return "Training is running as kubernetes job"


def resize_refused(round_: Round) -> str:
    """A quota or a limit range appears that does not allow the allocation that the job needs for its deadline."""
    kind = round_.draw.choice(("quota", "limit range"))
    is_lifted = round_.draw.choice((True, False))
    hold = round_.draw.randrange(BATCHES // 2, BATCHES)
    round_.details = f"{kind}, batch {hold}" + (", lifted" if is_lifted else "")
    task = round_.start(hold=hold, deadline="100d")
    task.wait_for(f"waits before batch {hold}")
    until(lambda: round_.pod().spec.containers[0].resources.limits["cpu"] == "300m")
    core, namespace = round_.core, round_.namespace
    if kind == "quota":
        core.create_namespaced_resource_quota(
            namespace, {"metadata": {"name": "small"}, "spec": {"hard": {"limits.cpu": "500m"}}}
        )
        until(lambda: core.read_namespaced_resource_quota("small", namespace).status.used)
        reason = "exceeded quota: small"
    else:
        limits = [{"type": "Container", "max": {"cpu": "500m"}}]
        core.create_namespaced_limit_range(namespace, {"metadata": {"name": "small"}, "spec": {"limits": limits}})
        reason = "maximum cpu usage per Container is 500m"
    began = datetime.fromisoformat(task.state.get("container")["origin"])
    elapsed_s = (datetime.now(timezone.utc) - began).total_seconds()
    task.state.set("deadline", f"{elapsed_s + 5:.0f}s")  # the job that waits needs all cores for it
    task.wait_for(reason)
    if is_lifted:
        delete = core.delete_namespaced_resource_quota if kind == "quota" else core.delete_namespaced_limit_range
        delete("small", namespace)
        until(lambda: round_.pod().spec.containers[0].resources.limits["cpu"] == "1")
    round_.release()
    return f"Waiting for an allocation of .*{reason}"


def quota_full(round_: Round) -> str:
    """A quota has no room for the pod at the start, and then it has."""
    hard = round_.draw.choice(({"pods": "0"}, {"count/pods": "0"}))  # a quota smaller than the job is an error
    round_.details = ", ".join(f"{name} {value}" for name, value in hard.items())
    core, namespace = round_.core, round_.namespace
    core.create_namespaced_resource_quota(namespace, {"metadata": {"name": "full"}, "spec": {"hard": hard}})
    until(lambda: core.read_namespaced_resource_quota("full", namespace).status.hard)
    round_.start().wait_for("exceeded quota: full")
    time.sleep(round_.draw.uniform(0.0, 3.0))
    core.delete_namespaced_resource_quota("full", namespace)
    return "exceeded quota: full"


_DEATHS: tuple[tuple[str, int], ...] = (
    ("POST pods", 1),  # the pod exists
    ("PATCH {name}", 1),  # it has its files, and the job has not started
    ("job started", 1),
    ("PATCH {name}", 2),  # the job has its record
    ("container stored", 1),
    ("batch", 1),
    ("collect", 1),
    ("collected", 1),
    ("result stored", 1),
    ("DELETE {name}", 1),
)


def worker_killed(round_: Round) -> str:
    """The worker process is killed once to three times, at any moment of the start, the training and the end."""
    deaths: list[Death] = []
    for _ in range(round_.draw.randint(1, 3)):
        moment, occurrence = round_.draw.choice(_DEATHS)
        if moment == "batch":
            moment = f"batch {round_.draw.randrange(1, BATCHES)}"
        deaths.append((moment, occurrence, round_.draw.choice((0.0, round_.draw.uniform(0.0, 1.0)))))
    round_.details = "; ".join(f"{moment} {number} + {after_s:.2f} s" for moment, number, after_s in deaths)
    round_.start(deaths=deaths)
    return "Result: "


def two_tries(round_: Round) -> str:
    """Airflow starts a second try although the first still runs: at once, or after the first was suspended."""
    hold = round_.draw.randrange(2, BATCHES)
    is_suspended = round_.draw.choice((True, False))
    task = round_.make_task(hold=hold)
    first = task.start_try()
    if is_suspended:
        round_.details = f"the first suspended before batch {hold}"
        task.wait_for(f"waits before batch {hold}")
        first.send_signal(signal.SIGSTOP)
        task.start()
        task.wait_for("of an earlier try is running: taking it over")
        time.sleep(11.0)  # longer than a suspension that the control loop ignores
        first.send_signal(signal.SIGCONT)
    else:
        delay_s = round_.draw.choice((0.0, round_.draw.uniform(0.0, 4.0)))
        round_.details = f"the second {delay_s:.2f} s after the first"
        time.sleep(delay_s)
        task.start()
    round_.release()
    task.wait()
    first.wait(120)
    return "taken over|taking it over|another process"


def _after_loss(moment: str, reason: str) -> str:
    """Return the message about a lost pod: the reason and, unless the job had not started, what follows.

    An evicted pod has time for a last copy of its checkpoint. A pod whose output was just collected is not missed.
    """
    if moment == "collecting":
        return f"{reason}|Reached: result stored"
    if moment != "training":
        return reason
    return f"(?s){reason}.*{AFTER_LOSS}" + (f".*{RESUMED}" if "Eviction" in reason else "")


def _evict(round_: Round) -> None:
    def evict(name: str, namespace: str) -> None:
        metadata = {"name": name, "namespace": namespace}
        round_.core.create_namespaced_pod_eviction(name, namespace, {"metadata": metadata})

    _on_pod(round_, evict)


def _on_pod(round_: Round, act: Callable[[str, str], object]) -> None:
    """Act on the task's pod, unless the task has already removed it, or removes it at this moment."""
    from kubernetes.client.exceptions import NotFoundException

    with contextlib.suppress(NotFoundException):
        for pod in round_.pods():
            act(pod.metadata.name, round_.namespace)


def _is_ready(node: Any) -> bool:
    return any(one.type == "Ready" and one.status == "True" for one in node.status.conditions)


FAULTS: dict[str, Strike] = {
    "pod deleted": pod_deleted,
    "pod evicted": pod_evicted,
    "node drained": node_drained,
    "kubelet away": kubelet_away,
    "API server away": server_away,
    "log cut": log_cut,
    "resize refused": resize_refused,
    "quota full": quota_full,
    "worker killed": worker_killed,
    "two tries": two_tries,
}
