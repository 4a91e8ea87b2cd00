"""How many requests each task sends to a cluster's API server: at the start, while it steers its job, and at the end.

Each job has a client of its own, as each Airflow task. ``client-go`` limits a client to 20 requests a second on average
(``QPS``) and 40 at once (``burst``), which clusters expect of one client. The jobs only sleep, so that the requests are
those of Paceline. Run it as ``python -m benchmarks.cluster_requests``, with a cluster (``KUBECONFIG``) whose nodes have
the image and room for the pods.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import itertools
import os
import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from paceline.errors import PacelineError, RuntimeUnavailableError
from paceline.runtime import JobSpec
from paceline.runtime.kubernetes import KubernetesRuntime, PodJob

QPS, BURST = 20, 40
_STEP = 0.05  # quantum of the controller, in cores
_TRIES = 3  # starts of a job before the benchmark fails


class Counter:
    """Counts the requests of all clients of this process: their time, client and verb."""

    def __init__(self) -> None:
        self._requests: list[tuple[float, int, str]] = []

    def take(self) -> list[tuple[float, int, str]]:
        """Return the requests since the last call."""
        taken, self._requests = self._requests, []
        return taken

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """Count during the block."""
        from kubernetes.client import ApiClient

        call = ApiClient.call_api

        def counted(client: Any, path: str, method: str, *arguments: Any, **options: Any) -> Any:
            # Clients for commands in pods share the configuration of their task's client.
            request = (time.monotonic(), id(client.configuration), _verb(path, method, arguments))
            self._requests.append(request)
            return call(client, path, method, *arguments, **options)

        ApiClient.call_api = counted
        try:
            yield
        finally:
            ApiClient.call_api = call


def _verb(path: str, method: str, arguments: Any) -> str:
    """Return the cluster's verb and the kind of object."""
    query = dict(arguments[1] or ())
    names = [word for word in path.split("/")[3:] if not word.startswith("{") and word != "namespaces"]
    verb = {"POST": "create", "PATCH": "patch", "DELETE": "delete"}.get(method)
    if verb is None:
        is_list = path.rpartition("/")[2] in ("pods", "nodes", "limitranges", "resourcequotas")
        verb = "watch" if query.get("watch") else "list" if is_list else "get"
    return f"{verb} {'/'.join(names[-2:]) or path}"


def main() -> None:
    """Print the requests of each phase."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster_requests", description=__doc__)
    parser.add_argument("--image", default="paceline-trainer:latest")
    parser.add_argument("--jobs", type=int, default=200, help="pods at the same time (200)")
    parser.add_argument("--starts", type=int, default=8, help="pods that start at the same time (8)")
    parser.add_argument("--steer-s", type=float, default=60.0, help="duration of the steering (60 s)")
    parser.add_argument("--every-s", type=float, default=3.0, help="time between decisions about a job (3 s)")
    options = parser.parse_args()
    counter, began_s = Counter(), time.monotonic()
    with counter.counting(), tempfile.TemporaryDirectory() as folder:
        tasks = [_Task(options.image, number, Path(folder)) for number in range(options.jobs)]
        print(f"{options.jobs} jobs; client-go grants each client {QPS} requests a second, {BURST} at once")
        try:
            for phase, workers, work in (
                ("start", options.starts, _Task.start),
                ("steer", options.jobs, lambda task: task.steer(options.steer_s, options.every_s)),
                ("end", options.starts, _Task.end),
            ):
                _measure(phase, tasks, workers, work, counter)
        finally:
            for task in tasks:
                task.remove()
    print(f"took {time.monotonic() - began_s:.0f} s")


def _measure(phase: str, tasks: list[_Task], workers: int, work: Callable[[_Task], float], counter: Counter) -> None:
    """Run one phase for all tasks, and print its requests."""
    counter.take()
    began_s = time.monotonic()
    with ThreadPoolExecutor(workers) as pool:
        busy_s = sum(pool.map(work, tasks)) / len(tasks)
    took_s = time.monotonic() - began_s
    requests = counter.take()
    each_second = collections.Counter((client, int(at_s)) for at_s, client, _ in requests)
    all_in_a_second = collections.Counter(int(at_s) for at_s, _, _ in requests)
    kinds = collections.Counter(verb for _, _, verb in requests)
    print(f"\n{phase}: {took_s:.0f} s, of each task {busy_s:.1f} s on average")
    print(f"{'':32}{'of a task':>11}{'a second, one task':>21}{'all tasks':>12}")
    for verb, number in [*sorted(kinds.items(), key=lambda one: -one[1]), ("together", len(requests))]:
        of_one = number / len(tasks)
        print(f"{verb:32}{of_one:11.2f}{of_one / busy_s:21.2f}{number / took_s:12.2f}")
    print(f"busiest second: {max(each_second.values())} of one task, {max(all_in_a_second.values())} of all tasks")


class _Task:
    """What a task does with its job, with a client of its own."""

    def __init__(self, image: str, number: int, folder: Path) -> None:
        from kubernetes.config import new_client_from_config

        self._runtime = KubernetesRuntime(new_client_from_config, start_timeout_s=900.0)
        name, command = f"requests-{os.getpid()}-{number}", ["/bin/sh", "-c", "exec sleep 100000"]
        limits: dict[str, Any] = {"memory_bytes": 64 * 2**20, "disk_bytes": 64 * 2**20}
        self._spec = JobSpec(name, command, 0.5, image=image, max_devices=1.0, **limits)
        self._random, self._folder = random.Random(number), folder / name
        self._job: PodJob | None = None
        self._stopped = threading.Event()

    def start(self) -> float:
        """Start the job as an operator does; return the seconds."""
        began_s = time.monotonic()
        for tries in itertools.count(1):
            self._runtime.find_job(self._spec.name, {})
            self._runtime.capacity()
            self._runtime.check(self._spec)
            try:
                self._job = self._runtime.start(self._spec)
                break
            except RuntimeUnavailableError as error:  # for example a busy node: Airflow starts the task again, too
                if tries == _TRIES:
                    raise
                print(f"{self._spec.name} starts again: {error}")
        self._job.save_record({"job": self._job.id})
        return time.monotonic() - began_s

    def steer(self, duration_s: float, every_s: float) -> float:
        """Decide about the allocation every few seconds: one quantum more, one less, or the same."""
        assert self._job is not None  # started
        began_s, devices = time.monotonic(), self._spec.devices
        self._stopped.wait(self._random.uniform(0, every_s))
        while time.monotonic() - began_s < duration_s:
            devices = min(max(devices + self._random.choice((-_STEP, 0.0, _STEP)), 0.1), 1.0)
            self._job.read_lines()
            self._job.usage()
            self._job.resize(devices)
            self._stopped.wait(every_s)
        return time.monotonic() - began_s

    def end(self) -> float:
        """Stop the job, collect its output and remove it, as after its end; return the seconds."""
        assert self._job is not None  # started
        began_s = time.monotonic()
        self._job.stop(0)
        self._job.wait(60)
        self._job.status()
        self._job.collect(self._folder)
        self._job.remove()
        self._job = None
        return time.monotonic() - began_s

    def remove(self) -> None:
        """Remove the job if a phase has failed."""
        if self._job is not None:
            with contextlib.suppress(PacelineError):
                self._job.remove()


if __name__ == "__main__":
    main()
