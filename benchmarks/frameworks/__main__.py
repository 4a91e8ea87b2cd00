"""Trains with each library by a deadline: ``python -m benchmarks.frameworks [--only NAME,...]``. Resumable."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from demo.signals import end_on_sigterm
from tqdm import tqdm

from benchmarks.deadline.cells import Record
from benchmarks.frameworks.cases import CASES
from benchmarks.frameworks.report import row, simulated_table, table
from benchmarks.frameworks.run import Trainer
from benchmarks.frameworks.simulated import simulate
from benchmarks.options import between, writable
from paceline.errors import PacelineError

COMPARED_STEPS = 200


def compare_pools(trainer: Trainer, record: Record, library: str) -> list[dict[str, Any]]:
    """Train the same steps on one core, with all native threads and with one; return the cost of each.

    A library that does not adapt its threads uses all of them on any allocation.
    """
    costs = []
    for threads in (None, 1):
        name = f"{library}/one core/{threads or 'all'} threads"
        if name not in record:
            run = trainer.train_constant(library, COMPARED_STEPS, 1.0, threads)
            run["native_threads"] = int(run["metrics"]["native_threads"])
            record.add(name, {key: run[key] for key in ("steps", "native_threads", "core_seconds", "cpu_seconds")})
        costs.append(record[name])
    return costs


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark, print its table and write the figures as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.frameworks", description=__doc__)
    parser.add_argument(
        "--only",
        type=_libraries,
        default=list(CASES),
        metavar="NAME,...",
        help=f"some of {', '.join(CASES)}; by default all that are installed",
    )
    parser.add_argument(
        "--deadline-s",
        type=between(20.0, 3600.0),
        default=40.0,
        help="deadline; each training has so many steps that it is about FACTOR times the shortest time (40)",
    )
    parser.add_argument("--factor", type=between(1.0, 10.0), default=1.5, help="(1.5)")
    parser.add_argument("--simulated", action="store_true", help="only simulate the trainings (seconds)")
    parser.add_argument("--folder", type=Path, default=Path("build/frameworks"), help="record of finished runs")
    parser.add_argument("--json", type=writable, default=None, metavar="FILE")
    chosen = parser.parse_args(arguments)
    end_on_sigterm()
    simulated = {library: simulate(library, chosen.deadline_s, chosen.factor) for library in chosen.only}
    if chosen.simulated:
        print(simulated_table(simulated))
        _write(chosen.json, {"simulated": simulated})
        return 0
    trainer, record = Trainer(chosen.folder / "jobs"), Record(chosen.folder / "runs.jsonl")
    rows, failed = [], False
    pools: dict[str, Any] = {}
    for library in tqdm(chosen.only):
        if not CASES[library].is_installed:
            tqdm.write(f"{library} is not installed, expected the modules {', '.join(CASES[library].modules)}")
            continue
        name = f"{library}/{chosen.deadline_s:g}/{chosen.factor:g}"
        try:
            if name not in record:
                record.add(name, trainer.train_by(chosen.deadline_s, chosen.factor, library))
            if not CASES[library].adapts_threads:
                pools[library] = compare_pools(trainer, record, library)
        except PacelineError as error:
            tqdm.write(f"{library} failed: {error}", file=sys.stderr)
            failed = True
            continue
        rows.append(row(library, trainer.cores, record[name], simulated[library]))
    if rows:
        print(table(rows))
        others = [one["other_cores"] for one in rows]
        print(f"used by other processes: {min(others):.2f} to {max(others):.2f} of {trainer.cores:g} cores")
    for library, costs in pools.items():
        for cost in costs:
            print(
                f"{library}, {cost['steps']} steps on 1 core, native threads {cost['native_threads']}: "
                f"{cost['core_seconds']:.1f} core-seconds, {cost['cpu_seconds']:.1f} s of CPU time"
            )
    _write(chosen.json, {"cores": trainer.cores, "libraries": rows, "pools": pools})
    return int(failed)


def _libraries(text: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in CASES]:
        raise argparse.ArgumentTypeError(f"got {unknown[0]!r}, expected some of {','.join(CASES)}")
    return names


def _write(path: Path | None, result: dict[str, Any]) -> None:
    if path:
        path.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
