"""Measures emulated devices and links, and whether scaling recognises the bottleneck of a team."""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Iterator
from typing import Any

from benchmarks.promises.machine import busy_excuse, idle_core_s
from benchmarks.promises.registry import Reading, measures
from benchmarks.promises.stage import LABEL, OURS, SCRIPTS, Stage, wait_until
from paceline.elastic import Scaling, Team, TeamConfiguration
from paceline.elastic.nodes import LABEL_NODE, LABEL_TEAM
from paceline.elastic.runtime import TeamRuntime
from paceline.errors import PacelineError
from paceline.fleet import Link
from paceline.runtime import DockerOptions, JobSpec, TeamNetwork
from paceline.testing.emulated_device import EmulatedDevice, remove_old_groups
from paceline.testing.emulated_link import limit_bandwidth

_DEVICES = ((0.5, 2), (0.18, 3))  # cores of a device, and number of busy containers in the device
BYTES, MBIT_S = 1_000_000, 20.0
_ECHO = f"""
import socket
listener = socket.create_server(("0.0.0.0", 7000))
there, _ = listener.accept()
while True:
    there.recv({BYTES}, socket.MSG_WAITALL)
    there.sendall(b"x" * {BYTES})
"""
_MEASURE_ROUND_TRIPS = f"""
import socket, time
give_up = time.monotonic() + 60
while True:
    try:
        there = socket.create_connection(("echo", 7000))
        break
    except OSError:
        if time.monotonic() > give_up: raise
        time.sleep(0.1)
while True:
    began = time.monotonic()
    there.sendall(b"x" * {BYTES})
    there.recv({BYTES}, socket.MSG_WAITALL)
    print("took", time.monotonic() - began, flush=True)
    time.sleep(0.1)
"""
# Speeds on a busy machine vary more than in a cluster, so the threshold for stable samples is above the default.
_STABLE_OPTIONS: dict[str, Any] = {"stable_samples": 3, "stable_variation": 0.2, "network_samples": 10}


@measures("device", "starved", takes_s=(25, 25), needs=("engine", "root"))
def device(stage: Stage) -> Iterator[Reading]:
    """Measure the CPU use of busy containers in an emulated device."""
    for cores, containers in _DEVICES:
        stage.log(f"{containers} busy containers in a device of {cores:g} cores")
        remove_old_groups(OURS)
        with contextlib.ExitStack() as stack:
            emulated = EmulatedDevice(OURS, cores, memory_bytes=2**29, processor=min(os.sched_getaffinity(0)))
            stack.enter_context(emulated)
            jobs = []
            for number in range(containers):
                spec = JobSpec(
                    name=f"{OURS}-device-{number}",
                    command=["python", "-c", "while True: pass"],
                    devices=cores,
                    image=stage.image,
                    options=DockerOptions(cgroup_parent=emulated.cgroup_parent),
                    labels=LABEL,
                )
                jobs.append(stage.containers.start(spec))
                stack.callback(jobs[-1].remove)
            time.sleep(1)
            before, each_before, idle_s = emulated.read(), [job.usage() for job in jobs], idle_core_s()
            time.sleep(6)
            after, each_after = emulated.read(), [job.usage() for job in jobs]
        of = f"{containers} on {cores:g}"
        used = (after.cpu_s - before.cpu_s) / (after.measured_s - before.measured_s)
        idle_cores = (idle_core_s() - idle_s) / (after.measured_s - before.measured_s)
        cpu_seconds = [second.cpu_s - first.cpu_s for first, second in zip(each_before, each_after, strict=True)]
        yield Reading("device", 100 * (used / cores - 1), of, busy_excuse(used < 0.9 * cores, idle_cores))
        yield Reading("starved", min(cpu_seconds) / max(cpu_seconds), of)


@measures("link", takes_s=(15, 15), needs=("engine", "root", "tc"))
def link(stage: Stage) -> Iterator[Reading]:
    """Measure round trips between two containers, one of which is behind a narrow link."""

    def start(name: str, program: str, alias: str | None) -> Any:
        command = ["python", "-c", program]
        spec = JobSpec(
            f"{OURS}-{name}",
            command,
            0.5,
            image=stage.image,
            team_network=TeamNetwork(f"paceline-{OURS}-link", alias),
            labels=LABEL,
        )
        return stage.containers.start(spec)

    def round_trips_s(job: Any, count: int) -> list[float]:
        job.read_lines()
        times_s: list[float] = []

        def has_enough() -> bool:
            times_s.extend(float(line.split()[1]) for line in job.read_lines() if line.startswith("took"))
            return len(times_s) >= count

        wait_until(has_enough, 90, "no round trip ends", period_s=0.05)
        return times_s

    stage.log(f"round trips of {BYTES / 1e6:g} MB at {MBIT_S:g} Mbit/s")
    with contextlib.ExitStack() as stack:
        echo = start("echo", _ECHO, "echo")
        stack.callback(echo.remove)
        ask = start("ask", _MEASURE_ROUND_TRIPS, None)
        stack.callback(ask.remove)
        round_trips_s(ask, 2)
        limit_bandwidth(stage.client, ask.id, Link(mbit_per_s=MBIT_S))
        expected_s = 2 * 8 * BYTES / (MBIT_S * 1e6)
        for seconds in round_trips_s(ask, 5)[2:]:  # the first round trip may have started before the limit
            yield Reading("link", 100 * (seconds / expected_s - 1), f"{seconds:.2f} s for {expected_s:.2f}")


def _first_step(
    stage: Stage, before: TeamConfiguration, *, numbers: int, batch_cpu_s: float, link_mbit_s: float | None = None
) -> tuple[str, TeamConfiguration]:
    """Train until the first step; return the kind and reason of the step, and the new configuration."""
    options = Team(link_mbit_s=link_mbit_s, **_STABLE_OPTIONS)
    script = SCRIPTS / "bottleneck.py"
    spec = JobSpec(
        name=f"{OURS}-{uuid.uuid4().hex[:8]}",
        command=["python", script.name, str(numbers), str(batch_cpu_s)],
        devices=before.cores,
        image=stage.image,
        files={script.name: script},
        labels=LABEL,
    )
    scaling = Scaling(before.cores, options, configuration=before)
    runtime = TeamRuntime(stage.containers, lambda _: spec, options=options, decider=lambda *_: scaling)
    team = runtime.start(spec)
    steps: list[Any] = []

    def has_step() -> bool:
        team.wait(0.5)
        team.usage()
        team.read_lines()
        steps.extend(step for step in team.take_steps() if step.kind != "begin")
        return bool(steps)

    try:
        if link_mbit_s is not None:
            labels = [f"{LABEL_TEAM}={spec.name}", f"{LABEL_NODE}=ps-0"]
            (server,) = stage.client.containers(filters={"label": labels})
            limit_bandwidth(stage.client, server["Id"], Link(mbit_per_s=link_mbit_s))
        wait_until(has_step, 200, "no step is taken", period_s=0.0)
    finally:
        with contextlib.suppress(PacelineError):
            team.stop(1.0)
        team.remove()
    return f"{steps[0].kind}: {steps[0].reason}", steps[0].configuration


@measures("bottleneck-worker", takes_s=(40, 40), needs=("engine",))
def bottleneck_worker(stage: Stage) -> Iterator[Reading]:
    """Train with a worker of one thread on one and a half cores."""
    stage.log("a worker has more cores than its threads can use")
    step, after = _first_step(stage, TeamConfiguration((0.2,), (1.5,)), numbers=1000, batch_cpu_s=0.02)
    is_expected = step.startswith("worker") and (len(after.servers), len(after.workers)) == (1, 2)
    yield Reading("bottleneck-worker", float(is_expected and "cores are used: 1 more worker" in step), step)


@measures("bottleneck-link", takes_s=(60, None), needs=("engine", "root", "tc"))
def bottleneck_link(stage: Stage) -> Iterator[Reading]:
    """Saturate the link of a parameter server with five workers; fewer would use only one direction at a time."""
    stage.log("the link of a parameter server is full")
    before = TeamConfiguration((0.4,), (0.2,) * 5)
    step, after = _first_step(stage, before, numbers=100_000, batch_cpu_s=0.001, link_mbit_s=20)
    is_expected = step.startswith("server: network of ps-0 at 9") and (len(after.servers), len(after.workers)) == (2, 5)
    yield Reading("bottleneck-link", float(is_expected), step)


@measures("bottleneck-server", takes_s=(40, None), needs=("engine",))
def bottleneck_server(stage: Stage) -> Iterator[Reading]:
    """Train with a parameter server of a million numbers on a tenth of a core."""
    stage.log("a parameter server lacks cores")
    before = TeamConfiguration((0.1,), (0.7, 0.7))
    step, after = _first_step(stage, before, numbers=1_000_000, batch_cpu_s=0.01)
    is_expected = step.startswith("reassign: worker-") and after.servers[0] > 1.2 * before.servers[0]
    yield Reading("bottleneck-server", float(is_expected), step)
