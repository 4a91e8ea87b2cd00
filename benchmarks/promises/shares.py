"""Measures jobs' shares of the cores, and the delays of resizes, waits and stops.

Each mechanism is measured alone: signals, a control group, a container's quota.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from benchmarks.promises.machine import idle_core_s, too_busy
from benchmarks.promises.registry import Reading, measures
from benchmarks.promises.stage import LABEL, OURS, Stage, until
from paceline.runtime import Job, JobSpec, ProcessRuntime
from paceline.runtime.processes import cpu_seconds, find_by_environment

BURN = """
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
APART = """
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
CORES = """
import time
while True:
    start, cpu = time.monotonic(), time.process_time()
    while time.monotonic() - start < 0.5:
        sum(range(1000))
    print("cores", (time.process_time() - cpu) / (time.monotonic() - start), flush=True)
"""
ENDS = "import time; print('up', flush=True); time.sleep(2)"
IGNORES_SIGTERM = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(120)"
)
_PARTS = ((1, 0.35), (2, 1.3))  # busy processes, and the cores that they share


class Bench:
    """A runtime, with jobs that are removed after their measurement."""

    def __init__(self, stage: Stage, mechanism: Literal["signal", "cgroup", "container"]) -> None:
        self.stage, self.mechanism = stage, mechanism
        self.runtime = (
            stage.containers
            if mechanism == "container"
            else ProcessRuntime(stage.scratch / "jobs", mechanism=mechanism)
        )

    @contextmanager
    def job(self, code: str, devices: float = 1.0, *arguments: str) -> Iterator[Job]:
        """Start a job and wait for its first line; remove it after the block."""
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
            until(job.read_lines, 60, "the job does not start", period_s=0.05)
            _raise_priority(job)
            yield job
        finally:
            job.remove()

    def share(self, promise: str, workers: int, devices: float, seconds: float) -> Iterator[Reading]:
        """Measure a busy job's deviation from its share, and the use of its launcher, in percent."""
        with self.job(BURN, devices, str(workers)) as job:
            job.wait(1.5)
            launcher = _state(job).get("launcher", {}).get("pid")
            idle_s, launcher_s, first = idle_core_s(), cpu_seconds(launcher) if launcher else None, _used(job)
            began_s = time.monotonic()
            job.wait(seconds)
            second, lasted_s = _used(job), time.monotonic() - began_s
            spare = (idle_core_s() - idle_s) / lasted_s
            used = (second[1] - first[1]) / (second[0] - first[0])
            excuse = too_busy(used < 0.97 * devices, spare)
            yield Reading(promise, 100 * (used / devices - 1), f"{workers} busy on {devices:g}", excuse)
            if launcher_s is not None:
                cost = (cpu_seconds(launcher) or launcher_s) - launcher_s
                yield Reading("launcher", 100 * cost / lasted_s, f"{self.mechanism}, {workers} busy on {devices:g}")

    def resize(self) -> Iterator[Reading]:
        """Measure the error of a busy job's cores from half a second after each of two resizes."""
        with self.job(CORES, 0.2) as job:
            for devices in (0.8, 0.2):
                idle_s, began_s = idle_core_s(), time.monotonic()
                job.resize(devices)
                job.wait(0.5)
                used = _cores(job)
                spare = (idle_core_s() - idle_s) / (time.monotonic() - began_s)
                excuse = too_busy(used < devices - 0.05, spare)
                yield Reading("resize", used - devices, f"{self.mechanism}, to {devices:g}", excuse)

    def waits(self, promise: str) -> Iterator[Reading]:
        """Measure how late ``wait`` returns at its timeout and at a job's end, in seconds."""
        with self.job(ENDS) as job:
            began_s = time.monotonic()
            job.wait(0.3)
            yield Reading(promise, time.monotonic() - began_s - 0.3, "the timeout")
            job.wait(60)
            returned_s, ended_s = time.time(), job.status().finished_s
            if ended_s is not None:
                yield Reading(promise, returned_s - ended_s, "the job's end")

    def stops(self, promise: str, grace_s: float) -> Iterator[Reading]:
        """Measure the seconds beyond the grace time to stop a job that ignores SIGTERM."""
        with self.job(IGNORES_SIGTERM) as job:
            began_s = time.monotonic()
            job.stop(grace_s)
            yield Reading(promise, time.monotonic() - began_s - grace_s)


def _cores(job: Job) -> float:
    """Return the mean of the job's next half-second measurements, without the first, which may span a resize."""
    job.read_lines()
    seen: list[float] = []

    def enough() -> bool:
        seen.extend(float(line.split()[1]) for line in job.read_lines() if line.startswith("cores"))
        return len(seen) > 4

    until(enough, 60, "the job prints nothing")
    return sum(seen[1:5]) / 4


def _used(job: Job) -> tuple[float, float]:
    """Return time and CPU seconds: the kernel's for a local process, the engine's latest for a container."""
    if _state(job):
        found = find_by_environment("PACELINE_OUTPUT", f"{job.id}/output")
        return time.monotonic(), sum(cpu_seconds(process.pid) or 0.0 for process in found)
    usage = job.usage()
    return usage.measured_s, usage.cpu_s


def _state(job: Job) -> dict[str, Any]:
    """Return the state file of a local process's launcher; {} for a container."""
    path = Path(job.id) / "state.json"
    state: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return state


def _raise_priority(job: Job) -> None:
    """Raise the job's scheduling priority, so that other work does not distort its share."""
    state = _state(job)
    for pid in (state["launcher"]["pid"], state["child"]) if state else ():
        with suppress(OSError):
            Path(f"/proc/{pid}/autogroup").write_text("-15")


def _shares(stage: Stage, mechanism: Literal["signal", "cgroup", "container"], seconds: float) -> Iterator[Reading]:
    bench = Bench(stage, mechanism)
    for workers, devices in _PARTS:
        stage.log(f"{workers} busy processes on {devices:g} cores ({mechanism})")
        if devices <= bench.runtime.capacity():
            yield from bench.share(f"share-{mechanism}", workers, devices, seconds / 2 if stage.quick else seconds)


@measures("share-signal", "launcher", takes_s=(30, 20))
def share_signal(stage: Stage) -> Iterator[Reading]:
    """Measure the share of a local process that is stopped and continued."""
    yield from _shares(stage, "signal", 10.0)


@measures("share-cgroup", "launcher", takes_s=(20, 15), needs=("cgroup",))
def share_cgroup(stage: Stage) -> Iterator[Reading]:
    """Measure the share of a local process in a control group."""
    yield from _shares(stage, "cgroup", 6.0)


@measures("share-container", takes_s=(20, 15), needs=("engine",))
def share_container(stage: Stage) -> Iterator[Reading]:
    """Measure the share of a container."""
    yield from _shares(stage, "container", 6.0)


@measures("apart", takes_s=(10, 10))
def apart(stage: Stage) -> Iterator[Reading]:
    """Measure a job whose processes are in other sessions."""
    with Bench(stage, "signal").job(APART, 0.3) as job:
        job.wait(1.5)
        first = _used(job)
        job.wait(4.0)
        second = _used(job)
        yield Reading("apart", 100 * ((second[1] - first[1]) / (second[0] - first[0]) / 0.3 - 1))


@measures("resize", takes_s=(15, 15))
def resize_process(stage: Stage) -> Iterator[Reading]:
    """Measure resizes of a local process."""
    yield from Bench(stage, "signal").resize()


@measures("resize", takes_s=(15, 15), needs=("engine",))
def resize_container(stage: Stage) -> Iterator[Reading]:
    """Measure resizes of a container."""
    yield from Bench(stage, "container").resize()


@measures("wait-process", "stop-process", takes_s=(6, 6))
def waits_process(stage: Stage) -> Iterator[Reading]:
    """Measure the wait for a local process, and its stop."""
    bench = Bench(stage, "signal")
    yield from bench.waits("wait-process")
    yield from bench.stops("stop-process", 0.5)


@measures("wait-container", "stop-container", takes_s=(10, 10), needs=("engine",))
def waits_container(stage: Stage) -> Iterator[Reading]:
    """Measure the wait for a container, and its stop."""
    bench = Bench(stage, "container")
    yield from bench.waits("wait-container")
    yield from bench.stops("stop-container", 1.0)
