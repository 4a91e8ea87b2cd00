"""Measures the CPU cost of many control loops in one process, with a real clock and simulated jobs.

Run this benchmark as ``python -m benchmarks.loops [--loops 1000] [--seconds 30] [--json FILE]``.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from paceline.control import DeadlineController, Decision, Limits, Observation
from paceline.errors import TaskStoppedError
from paceline.run import Exchange, Handover, MemoryState, PaceLoop, Surroundings
from paceline.run.clock import SystemClock
from paceline.testing.plant import Plant
from paceline.testing.simulated_job import SimulatedJob

MAX_GAP_PERIODS = 1.5  # a longer gap between two steps counts as a missed period


class TimedController(DeadlineController):
    """A controller that records the time of each step."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.step_times_s: list[float] = []

    def step(self, seen: Observation) -> Decision:
        """Record the time and execute the step."""
        self.step_times_s.append(seen.now_s)
        return super().step(seen)


def measure(loops: int, seconds: float) -> dict[str, float]:
    """Run ``loops`` loops for ``seconds``; return the cores used, steps done and periods missed."""
    stop = threading.Event()
    controllers: list[TimedController] = []
    threads: list[threading.Thread] = []
    # The jobs are far longer than the benchmark, so every loop is in the middle of its run.
    plant = Plant(batches=50_000, batch_s=0.2, noise=0.05)
    for number in range(loops):
        clock = SystemClock()
        controller = TimedController(Limits(0.1, 4.0), 10_000.0)
        controllers.append(controller)
        job = SimulatedJob(plant, controller.start(0.0), clock, seed=number)
        exchange = Exchange(MemoryState())
        loop = PaceLoop(
            job,
            controller,
            exchange,
            Handover(datetime.fromtimestamp(clock.now(), timezone.utc), allocated_devices=controller.start(0.0)),
            surroundings=Surroundings(clock=clock, stopped=stop.is_set),
        )
        threads.append(threading.Thread(target=_run_until_stopped, args=(loop, exchange, number / loops)))
    for thread in threads:
        thread.start()
    time.sleep(3.0)  # until all loops have started
    for controller in controllers:
        controller.step_times_s.clear()
    began_s, cpu_s = time.monotonic(), time.process_time()
    time.sleep(seconds)
    took_s, used_s = time.monotonic() - began_s, time.process_time() - cpu_s
    gaps = [b - a for each in controllers for a, b in zip(each.step_times_s, each.step_times_s[1:], strict=False)]
    stop.set()
    for thread in threads:
        thread.join()
    return {
        "loops": loops,
        "seconds": round(took_s, 1),
        "cores": round(used_s / took_s, 3),
        "steps": sum(len(each.step_times_s) for each in controllers),
        "missed_periods": sum(gap > MAX_GAP_PERIODS for gap in gaps),
        "longest_gap_s": round(max(gaps), 3),
    }


def _run_until_stopped(loop: PaceLoop, exchange: Exchange, delay_s: float) -> None:
    time.sleep(delay_s)  # spread the steps of the loops over the control period, as in real jobs
    try:
        loop.run()
    except TaskStoppedError:
        pass  # the benchmark is over
    finally:
        exchange.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark, print its result and write the figures as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.loops", description=__doc__)
    parser.add_argument("--loops", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--json", type=Path, default=None, metavar="FILE")
    chosen = parser.parse_args(arguments)
    result = measure(chosen.loops, chosen.seconds)
    print(
        f"{result['loops']} loops, one step per second in each: {result['cores']:.2f} cores, {result['steps']} steps, "
        f"{result['missed_periods']} missed periods, at most {result['longest_gap_s']:.2f} s between two steps"
    )
    if chosen.json:
        chosen.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
