"""How long a new allocation takes until the kernel enforces it, for containers and for pods.

A job reads the quota of its control group a thousand times a second and prints the time of each change. Run it as
``python -m benchmarks.resizes``, with an engine (``DOCKER_HOST``), a cluster on this machine (``KUBECONFIG``), or both:
their resizes alternate, so that both see the same machine. ``--busy N`` adds N processes that keep a core busy each.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.engine import runtimes
from paceline.runtime import Job, JobSpec

OBSERVER = """
import time
from paceline.train.pacing.share import CpuShare
share, last = CpuShare(), None
while True:
    now = share.read()
    if now != last:
        print(f"{now:.3f} {time.time():.6f}", flush=True)
        last = now
    time.sleep(0.001)
"""


def main() -> None:
    """Print the delays."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.resizes", description=__doc__)
    parser.add_argument("--image", default="paceline-trainer:latest")
    parser.add_argument("--number", type=int, default=200, help="resizes of each runtime (200)")
    parser.add_argument("--every-s", type=float, default=1.0, help="pause between them: that of the controller (1 s)")
    parser.add_argument("--busy", type=int, default=0, help="processes that keep a core busy (0)")
    options = parser.parse_args()
    with _busy(options.busy), tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as jobs:
        script = Path(folder, "observer.py")
        script.write_text(OBSERVER)
        spec = JobSpec(f"resizes-{os.getpid()}", ["python", "observer.py"], 0.5, image=options.image)
        started: dict[str, Job] = {}
        for runtime in runtimes(cluster=bool(os.environ.get("KUBECONFIG"))):
            job = runtime.start(JobSpec(**{**vars(spec), "files": {"observer.py": script}}))
            jobs.callback(job.remove)
            _wait_for(job, 0.5)
            started[runtime.name] = job
        delays: dict[str, list[float]] = {name: [] for name in started}
        for number in range(options.number):
            time.sleep(options.every_s)
            for name, job in started.items():
                cores = 0.5 + 0.05 * (number % 9 + 1)
                asked_s = time.time()
                job.resize(cores)
                delays[name].append(1000 * (_wait_for(job, cores) - asked_s))
    print(f"{'':12}{'median':>9}{'90 %':>9}{'99 %':>9}{'longest':>9}   ms from the request to the quota in force")
    for name, values in delays.items():
        points = statistics.quantiles(values, n=100)
        print(f"{name:12}{points[49]:9.0f}{points[89]:9.0f}{points[98]:9.0f}{max(values):9.0f}   {len(values)} resizes")


def _wait_for(job: Job, cores: float) -> float:
    """Return when the quota of the job became ``cores``, in seconds since the epoch."""
    while True:
        for line in job.read_lines():
            quota, at_s = map(float, line.split())
            if abs(quota - cores) < 1e-3:
                return at_s
        if job.wait(0.01):
            raise RuntimeError(f"the observer has ended: {job.status()}")


@contextlib.contextmanager
def _busy(number: int) -> Iterator[None]:
    processes = [multiprocessing.Process(target=_spin, daemon=True) for _ in range(number)]
    for process in processes:
        process.start()
    yield
    for process in processes:
        process.terminate()


def _spin() -> None:
    while True:
        pass


if __name__ == "__main__":
    main()
