"""Measures the shares of cores that jobs get, and the delays of resizes, waits and stops.

The mechanisms (signals, a control group, a container's quota) are measured separately.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from benchmarks.promises.machine import busy_excuse, idle_core_s
from benchmarks.promises.registry import Reading, measures
from benchmarks.promises.stage import LABEL, OURS, Stage, wait_until
from paceline.runtime import Job, JobSpec, ProcessRuntime
from paceline.runtime.processes import cpu_seconds, find_by_environment

BUSY_PROCESSES = """
import multiprocessing, sys, time
def burn(seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        sum(range(2000))
if __name__ == "__main__":
    workers = [multiprocessing.get_context("fork").Process(target=burn, args=(120,)) for _ in range(int(sys.argv[1]))]
    for worker in workers: worker.start()
    print("up", flush=True)
    for worker in workers: worker.join()
"""
OTHER_SESSIONS = """
import os, subprocess, sys, time
code = "import time\\nwhile True: sum(range(1000))"
subprocess.Popen([sys.executable, "-c", code])
subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
if os.fork() == 0:
    subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    os._exit(0)
os.wait()
print("up", flush=True)
time.sleep(120)
"""
PRINTS_CORES = """
import time
while True:
    start, cpu = time.monotonic(), time.process_time()
    while time.monotonic() - start < 0.5:
        sum(range(1000))
    print("cores", (time.process_time() - cpu) / (time.monotonic() - start), flush=True)
"""
ENDS_SOON = "import time; print('up', flush=True); time.sleep(2)"
IGNORES_SIGTERM = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(120)"
)
_SHARES = ((1, 0.35), (2, 1.3))  # number of busy processes, and the cores that they share


class Bench:
    """A runtime that removes each job after its measurement."""

    def __init__(self, stage: Stage, mechanism: Literal["signal", "cgroup", "container"]) -> None:
        self.stage, self.mechanism = stage, mechanism
        self.runtime = (
            stage.containers
            if mechanism == "container"
            else ProcessRuntime(stage.scratch / "jobs", mechanism=mechanism)
        )

    @contextmanager
    def job(self, code: str, devices: float = 1.0, *arguments: str) -> Iterator[Job]:
        """Start a job and wait for its first line; remove the job after the block."""
        script = self.stage.scratch / "job.py"
        script.write_text(code)
        spec = JobSpec(
            name=f"{OURS}-{self.mechanism}",
            command=["python", "job.py", *arguments],
            devices=devices,
            files={"job.py": script},
            memory_bytes=512 * 2**20,
            labels=LABEL,
        )
        if self.mechanism == "container":
            spec = dataclasses.replace(spec, image=self.stage.image)
        job = self.runtime.start(spec)
        try:
            wait_until(job.read_lines, 60, "the job does not start", period_s=0.05)
            _raise_priority(job)
            yield job
        finally:
            job.remove()

    def measure_share(self, promise: str, workers: int, devices: float, seconds: float) -> Iterator[Reading]:
        """Measure a busy job's deviation from its share, and the CPU use of its launcher, in percent."""
        with self.job(BUSY_PROCESSES, devices, str(workers)) as job:
            job.wait(1.5)
            launcher = _launcher_state(job).get("launcher", {}).get("pid")
            idle_s, launcher_s, first = idle_core_s(), cpu_seconds(launcher) if launcher else None, _cpu_time(job)
            began_s = time.monotonic()
            job.wait(seconds)
            second, elapsed_s = _cpu_time(job), time.monotonic() - began_s
            idle_cores = (idle_core_s() - idle_s) / elapsed_s
            used = (second[1] - first[1]) / (second[0] - first[0])
            excuse = busy_excuse(used < 0.97 * devices, idle_cores)
            yield Reading(promise, 100 * (used / devices - 1), f"{workers} busy on {devices:g}", excuse)
            if launcher_s is not None:
                cost = (cpu_seconds(launcher) or launcher_s) - launcher_s
                yield Reading("launcher", 100 * cost / elapsed_s, f"{self.mechanism}, {workers} busy on {devices:g}")

    def measure_resizes(self) -> Iterator[Reading]:
        """Measure a busy job's deviation from its allocation, starting half a second after each of two resizes."""
        with self.job(PRINTS_CORES, 0.2) as job:
            for devices in (0.8, 0.2):
                idle_s, began_s = idle_core_s(), time.monotonic()
                job.resize(devices)
                job.wait(0.5)
                used = _mean_cores(job)
                idle_cores = (idle_core_s() - idle_s) / (time.monotonic() - began_s)
                excuse = busy_excuse(used < devices - 0.05, idle_cores)
                yield Reading("resize", used - devices, f"{self.mechanism}, to {devices:g}", excuse)

    def measure_waits(self, promise: str) -> Iterator[Reading]:
        """Measure how many seconds late ``wait`` returns after its timeout and after a job has ended."""
        with self.job(ENDS_SOON) as job:
            began_s = time.monotonic()
            job.wait(0.3)
            yield Reading(promise, time.monotonic() - began_s - 0.3, "the timeout")
            job.wait(60)
            returned_s, ended_s = time.time(), job.status().finished_s
            if ended_s is not None:
                yield Reading(promise, returned_s - ended_s, "the job's end")

    def measure_stops(self, promise: str, grace_s: float) -> Iterator[Reading]:
        """Measure how many seconds after the grace period a job that ignores SIGTERM is stopped."""
        with self.job(IGNORES_SIGTERM) as job:
            began_s = time.monotonic()
            job.stop(grace_s)
            yield Reading(promise, time.monotonic() - began_s - grace_s)


def _mean_cores(job: Job) -> float:
    """Return the mean of the job's next half-second measurements, except the first, which may span a resize."""
    job.read_lines()
    seen: list[float] = []

    def has_enough() -> bool:
        seen.extend(float(line.split()[1]) for line in job.read_lines() if line.startswith("cores"))
        return len(seen) > 4

    wait_until(has_enough, 60, "the job prints nothing")
    return sum(seen[1:5]) / 4


def _cpu_time(job: Job) -> tuple[float, float]:
    """Return time and CPU seconds, from the kernel for a local process, from the engine for a container."""
    if _launcher_state(job):
        processes = find_by_environment("PACELINE_OUTPUT", f"{job.id}/output")
        return time.monotonic(), sum(cpu_seconds(process.pid) or 0.0 for process in processes)
    usage = job.usage()
    return usage.measured_s, usage.cpu_s


def _launcher_state(job: Job) -> dict[str, Any]:
    """Return the content of the state file of a local process's launcher; {} for a container."""
    path = Path(job.id) / "state.json"
    state: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return state


def _raise_priority(job: Job) -> None:
    """Raise the job's scheduling priority, so that other work does not distort its share."""
    state = _launcher_state(job)
    for pid in (state["launcher"]["pid"], state["child"]) if state else ():
        with suppress(OSError):
            Path(f"/proc/{pid}/autogroup").write_text("-15")


def _measure_shares(
    stage: Stage, mechanism: Literal["signal", "cgroup", "container"], seconds: float
) -> Iterator[Reading]:
    bench = Bench(stage, mechanism)
    for workers, devices in _SHARES:
        stage.log(f"{workers} busy processes on {devices:g} cores ({mechanism})")
        if devices <= bench.runtime.capacity():
            yield from bench.measure_share(
                f"share-{mechanism}", workers, devices, seconds / 2 if stage.quick else seconds
            )


@measures("share-signal", "launcher", takes_s=(30, 20))
def share_signal(stage: Stage) -> Iterator[Reading]:
    """Measure the share of a local process whose share is enforced by signals."""
    yield from _measure_shares(stage, "signal", 10.0)


@measures("share-cgroup", "launcher", takes_s=(20, 15), needs=("cgroup",))
def share_cgroup(stage: Stage) -> Iterator[Reading]:
    """Measure the share of a local process in a control group."""
    yield from _measure_shares(stage, "cgroup", 6.0)


@measures("share-container", takes_s=(20, 15), needs=("engine",))
def share_container(stage: Stage) -> Iterator[Reading]:
    """Measure the share of a container."""
    yield from _measure_shares(stage, "container", 6.0)


@measures("other-sessions", takes_s=(10, 10))
def other_sessions(stage: Stage) -> Iterator[Reading]:
    """Measure the CPU use of a job with processes in other sessions."""
    with Bench(stage, "signal").job(OTHER_SESSIONS, 0.3) as job:
        job.wait(1.5)
        first = _cpu_time(job)
        job.wait(4.0)
        second = _cpu_time(job)
        yield Reading("other-sessions", 100 * ((second[1] - first[1]) / (second[0] - first[0]) / 0.3 - 1))


@measures("resize", takes_s=(15, 15))
def resize_process(stage: Stage) -> Iterator[Reading]:
    """Measure the resizing of a local process."""
    yield from Bench(stage, "signal").measure_resizes()


@measures("resize", takes_s=(15, 15), needs=("engine",))
def resize_container(stage: Stage) -> Iterator[Reading]:
    """Measure the resizing of a container."""
    yield from Bench(stage, "container").measure_resizes()


@measures("wait-process", "stop-process", takes_s=(6, 6))
def waits_process(stage: Stage) -> Iterator[Reading]:
    """Measure waiting for a local process, and stopping it."""
    bench = Bench(stage, "signal")
    yield from bench.measure_waits("wait-process")
    yield from bench.measure_stops("stop-process", 0.5)


@measures("wait-container", "stop-container", takes_s=(10, 10), needs=("engine",))
def waits_container(stage: Stage) -> Iterator[Reading]:
    """Measure waiting for a container, and stopping it."""
    bench = Bench(stage, "container")
    yield from bench.measure_waits("wait-container")
    yield from bench.measure_stops("stop-container", 1.0)
