"""Compares allocators: ``python -m benchmarks.allocators [--quick] [--data FOLDER] [--json FILE]``.

``FOLDER`` has the public traces and throughputs (``traces/``, ``throughput/A100/``). Without it, the benchmark omits
the tables of the traces and of the speed of decisions.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks.allocators import andreas, modelarts, speed, traces

TABLES = ("modelarts", "andreas", "traces", "speed")
_NEEDS_DATA = ("traces", "speed")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the simulations, print their tables and write the figures as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.allocators", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="compute only a few cells of each table (under five minutes)"
    )
    parser.add_argument("--only", choices=TABLES, action="append", help="compute only these tables")
    parser.add_argument("--data", type=Path, default=None, metavar="FOLDER", help="folder with traces/ and throughput/")
    parser.add_argument("--json", type=Path, default=None, metavar="FILE")
    chosen = parser.parse_args(arguments)
    tables = chosen.only or [table for table in TABLES if table not in _NEEDS_DATA or chosen.data]
    if not chosen.data and (without := [table for table in tables if table in _NEEDS_DATA]):
        parser.error(f"--only {without[0]} requires --data FOLDER, a folder with traces/ and throughput/")
    results: dict[str, Any] = {}
    began_s = time.perf_counter()
    with tqdm(bar_format="{desc} {elapsed}", leave=False) as bar:

        def show_progress(label: str) -> None:
            bar.set_description_str(label)
            bar.refresh()

        if "modelarts" in tables:
            results["milp_vs_greedy"] = modelarts.run(chosen.quick, show_progress)
            results["milp_large"] = modelarts.measure_large_plans(workloads=1 if chosen.quick else 3)
        if "andreas" in tables:
            results["costs"] = andreas.run(chosen.quick, show_progress)
            results["cost_gap"] = andreas.optimality_gaps(10 if chosen.quick else 100, show_progress)
            results["cost_decision"] = andreas.measure_decision()
        if "traces" in tables:
            results["traces"] = traces.run(chosen.data, chosen.quick, show_progress)
            results["simulator"] = traces.measure_simulator(
                chosen.data, 20_000 if chosen.quick else traces.FULL_TRACE_JOBS
            )
        if "speed" in tables:
            results["speed"] = speed.run(chosen.data, chosen.quick, show_progress)
    for table, module in (
        ("milp_vs_greedy", modelarts),
        ("costs", andreas),
        ("traces", traces),
        ("speed", speed),
    ):
        if table in results:
            print(module.table(results[table]), end="\n\n")
    for name in ("milp_large", "cost_gap", "cost_decision", "simulator"):
        if name in results:
            print(f"{name}: {json.dumps(results[name])}")
    print(f"{time.perf_counter() - began_s:.0f} s in total")
    if chosen.json:
        chosen.json.write_text(json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
