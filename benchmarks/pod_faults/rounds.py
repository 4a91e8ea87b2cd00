"""One round: a task in a namespace of its own, what happens to its pod, and what has to be true afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shlex
import subprocess
import threading
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.pod_faults.proxy import ServerProxy
from benchmarks.pod_faults.task import BATCHES, Task

_POLL_S = 0.1
_LEFTOVERS_S = 30.0
_LINE = re.compile(r"line (\w{8}) (\d+) ")
_NOT_PACELINE = {"kube-root-ca.crt"}


@dataclass(frozen=True)
class Commands:
    """Shell commands for faults that no API request causes; ``$NODE`` is the name of the node. Empty: not available."""

    stop_node: str = ""
    start_node: str = ""
    stop_server: str = ""
    start_server: str = ""
    away_s: float = 60.0


class Round:
    """A namespace and the task in it.

    Parameters
    ----------
    folder:
        Of the task's files.
    image:
        Of the pods.
    draw:
        Chooses the moment and the details of the fault.
    commands:
        For the faults that need them.
    """

    def __init__(self, folder: Path, image: str, draw: random.Random, commands: Commands) -> None:
        from kubernetes.client import CoreV1Api
        from kubernetes.config import new_client_from_config

        self.draw, self.commands, self.details = draw, commands, ""
        self._folder, self._image = folder, image
        self.core = CoreV1Api(new_client_from_config())
        self.namespace = f"faults-{uuid.uuid4().hex[:12]}"
        self.task: Task
        self.has_grace = False  # whether the fault lets the job end
        self._released = threading.Event()
        self.ends = contextlib.ExitStack()  # what restores the cluster after the round

    def __enter__(self) -> Round:
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        self.core.create_namespace({"metadata": {"name": self.namespace, "labels": labels}})
        self.ends.callback(self.core.delete_namespace, self.namespace)
        until(lambda: self.core.list_namespaced_service_account(self.namespace).items)  # pods need one
        return self

    def __exit__(self, *error: object) -> None:
        self.ends.close()

    def make_task(self, **options: Any) -> Task:
        """Return the round's task, which has not started."""
        self.task = Task(self._folder, self.namespace, self._image, **options)
        self.ends.callback(self.task.kill)
        return self.task

    def start(self, **options: Any) -> Task:
        """Start the task."""
        task = self.make_task(**options)
        task.start()
        return task

    def start_until(self, *moments: str) -> str:
        """Start the task, wait for one of these moments, and return it: "start", "training" or "collecting"."""
        moment = self.draw.choice(moments)
        hold = self.draw.randrange(2, BATCHES)
        self.details = f"{moment}, batch {hold}" if moment == "training" else moment
        if moment == "training":
            self.start(hold=hold).wait_for(f"waits before batch {hold}")
        else:
            self.start().wait_for({"start": "Reached: POST pods", "collecting": "Reached: collect"}[moment])
        time.sleep(self.draw.choice((0.0, self.draw.uniform(0.0, 1.0))))
        return moment

    def pods(self) -> list[Any]:
        """Return the pods of the task."""
        return list(self.core.list_namespaced_pod(self.namespace).items)

    def pod(self) -> Any:
        """Return the pod of the task."""
        return self.pods()[0]

    def release(self) -> None:
        """Let the job, also one in a later pod, go on to its end."""
        if not self._released.is_set():
            self._released.set()
            threading.Thread(target=self._release, daemon=True).start()

    def release_once(self) -> None:
        """Let the job in the present pod go on."""
        from kubernetes.client import ApiClient, CoreV1Api
        from kubernetes.stream import stream

        for pod in self.pods():
            api = CoreV1Api(ApiClient(self.core.api_client.configuration))  # `stream` changes its client
            command = ["touch", "/paceline/work/go"]
            stream(api.connect_get_namespaced_pod_exec, pod.metadata.name, self.namespace, command=command, stdout=True)

    def _release(self) -> None:
        while not self.task.has_ended():
            with contextlib.suppress(Exception):  # the pod may be starting or ending, the server away
                self.release_once()
            time.sleep(1.0)

    def run_command(self, command: str, node: str = "") -> None:
        """Run a command of the options."""
        subprocess.run(
            ["/bin/sh", "-c", command], check=True, env={**os.environ, "NODE": node}, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def proxy(self) -> ServerProxy:
        """Return a proxy before the API server."""
        made = ServerProxy(self.core.api_client.configuration.host)
        self.ends.callback(made.close)
        return made

    def problems(self, expected: Mapping[str, Any] | None, message: str) -> list[str]:
        """Return what is wrong after the end of the task; ``message``: what its log has to say."""
        return [
            *_wrong_result(self.task, expected),
            *_wrong_lines(self.task.log(number) for number in range(1, len(self.task.tries) + 1)),
            *([] if self._outruns() or re.search(message, self.task.log()) else [f"the log does not say {message!r}"]),
            *re.findall(r"Threads remain: .*|The try has crashed|Traceback.*", self.task.log()),
            *self._leftovers(),
        ]

    def _outruns(self) -> bool:
        """Return whether the job has ended and given its output in the grace period of its pod."""
        return self.has_grace and len(self.task.tries) == 1

    def _leftovers(self) -> list[str]:
        give_up_s = time.monotonic() + _LEFTOVERS_S
        while found := list(self._remaining()):
            if time.monotonic() > give_up_s:
                break
            time.sleep(_POLL_S)
        return [f"left: {one}" for one in found]

    def _remaining(self) -> Iterator[str]:
        core = self.core
        for kind, listing in (
            ("pod", core.list_namespaced_pod),
            ("config map", core.list_namespaced_config_map),
            ("secret", core.list_namespaced_secret),
        ):
            for one in listing(self.namespace).items:
                if one.metadata.name not in _NOT_PACELINE:
                    yield f"{kind} {one.metadata.name}"
        yield from (f"process {pid}" for pid in self.task.processes())


def until(condition: Callable[[], object]) -> None:
    """Wait until the cluster has done what a round needs."""
    give_up_s = time.monotonic() + 120.0
    while not condition():
        if time.monotonic() > give_up_s:
            raise TimeoutError("the cluster has not done what the round needs")
        time.sleep(_POLL_S)


def repeated_lines(task: Task) -> int:
    """Return how many lines of the job are in the logs of two tries: the second has read them again."""
    seen = Counter(match for number in range(1, len(task.tries) + 1) for match in set(_LINE.findall(task.log(number))))
    return sum(count - 1 for count in seen.values())


def _wrong_result(task: Task, expected: Mapping[str, Any] | None) -> Iterator[str]:
    result = task.result()
    if result is None:
        yield f"no result, the last try has ended with {task.tries[-1].returncode}"
    elif result["batches"] != BATCHES:
        yield f"the model has {result['batches']} batches"
    elif expected is not None and result != expected:
        yield f"the model is {json.dumps(result)}"


def _wrong_lines(logs: Iterator[str]) -> Iterator[str]:
    """Yield the lines that are missing between two others, or that one try has logged twice."""
    union: dict[str, set[int]] = defaultdict(set)
    for log in logs:
        numbers: dict[str, list[int]] = defaultdict(list)
        for process, number in _LINE.findall(log):
            numbers[process].append(int(number))
        for process, found in numbers.items():
            union[process].update(found)
            if found != list(range(found[0], found[0] + len(found))):
                yield f"lines of {process} are lost, doubled or in another order: {found}"
    for process, every in union.items():
        if missing := sorted(set(range(1, max(every))) - every):
            yield f"lost lines of {process}: {shlex.join(map(str, missing))}"


Strike = Callable[[Round], str]
