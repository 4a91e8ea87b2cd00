"""``python -m benchmarks.allocators [--quick] [--data FOLDER] [--json FILE]``: print and write all tables.

``FOLDER`` holds public traces and throughputs (``traces/``, ``throughput/A100/``); without it, that table is omitted.
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

from benchmarks.allocators import andreas, modelarts, traces

PARTS = ("modelarts", "andreas", "traces")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the simulations, print their tables and write them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.allocators", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few cells of each table: under five minutes")
    parser.add_argument("--only", choices=PARTS, action="append", help="one table, or several")
    parser.add_argument("--data", type=Path, default=None, metavar="FOLDER", help="with traces/ and throughput/")
    parser.add_argument("--json", type=Path, default=None, metavar="FILE")
    chosen = parser.parse_args(arguments)
    parts = chosen.only or [part for part in PARTS if part != "traces" or chosen.data]
    if "traces" in parts and not chosen.data:
        parser.error("--only traces needs --data FOLDER, with traces/ and throughput/")
    found: dict[str, Any] = {}
    began_s = time.perf_counter()
    with tqdm(bar_format="{desc} {elapsed}", leave=False) as bar:

        def progress(label: str) -> None:
            bar.set_description_str(label)
            bar.refresh()

        if "modelarts" in parts:
            found["milp_vs_greedy"] = modelarts.run(chosen.quick, progress)
            found["milp_large"] = modelarts.large(workloads=1 if chosen.quick else 3)
        if "andreas" in parts:
            found["rg_vs_baselines"] = andreas.run(chosen.quick, progress)
            found["rg_gap"] = andreas.gap(10 if chosen.quick else 100, progress)
            found["rg_gap_to_optimum_pct"] = found["rg_gap"]["mean_pct"]
            found["rg_decision"] = andreas.decision()
        if "traces" in parts:
            found["traces"] = traces.run(chosen.data, chosen.quick, progress)
            found["simulator"] = traces.speed(chosen.data, 20_000 if chosen.quick else traces.FAMILY)
    for part, module in (("milp_vs_greedy", modelarts), ("rg_vs_baselines", andreas), ("traces", traces)):
        if part in found:
            print(module.table(found[part]), end="\n\n")
    for name in ("milp_large", "rg_gap", "rg_decision", "simulator"):
        if name in found:
            print(f"{name}: {json.dumps(found[name])}")
    print(f"{time.perf_counter() - began_s:.0f} s in all")
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
