"""Compares bottleneck-driven scaling with Optimus and exhaustive search: ``python -m benchmarks.elastic``.

The benchmark has real training jobs on one engine, and simulations at the scale of Nearchus's clusters. The simulations
use training costs that are measured on this machine.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from demo.signals import end_on_sigterm
from tqdm import tqdm

from benchmarks.deadline.cells import Record
from benchmarks.elastic.by_deadline import compare_by_deadline
from benchmarks.elastic.curves import MODELS, Curve, measure
from benchmarks.elastic.interruption import measure_gaps
from benchmarks.elastic.multi_job import simulate_sharing
from benchmarks.elastic.real import LINKS, MODEL_NAMES, cases, compare
from benchmarks.elastic.shared_jobs import COMPARED, JOB_MIXES
from benchmarks.elastic.simulated import CLUSTERS, simulate_alone
from benchmarks.elastic.stage import Stage
from benchmarks.engine import connect

_PARTS = ("real", "interruption", "deadline", "alone", "shared")
_ALONE_SEEDS = 3  # number of seeds of the measurement noise


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark, print its tables and write the figures as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.elastic", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=_PARTS, default=list(_PARTS), metavar="PART")
    parser.add_argument("--quick", action="store_true", help="fewer models, configurations and traces")
    parser.add_argument(
        "--models", nargs="+", choices=MODEL_NAMES, metavar="MODEL", help=f"models to train: {', '.join(MODEL_NAMES)}"
    )
    parser.add_argument(
        "--links", nargs="+", choices=LINKS, default=LINKS, metavar="LINK", help="kinds of links: free, narrow"
    )
    parser.add_argument("--budget", type=float, default=1.6, help="cores of a real training job (%(default)s)")
    parser.add_argument("--epochs", type=int, default=60, help="epochs of a real training job (%(default)s)")
    parser.add_argument(
        "--restart-s", type=float, default=60.0, help="seconds that a restart under Optimus takes (%(default)s)"
    )
    parser.add_argument("--image", default="paceline-trainer:latest", help="image with Python and torch")
    parser.add_argument("--folder", type=Path, default=Path("build/elastic"), help="record of finished runs")
    parser.add_argument("--json", type=Path, default=None, metavar="FILE")
    chosen = parser.parse_args(arguments)
    end_on_sigterm()
    record = Record(chosen.folder / ("quick.jsonl" if chosen.quick else "runs.jsonl"))
    result: dict[str, Any] = {}
    if "real" in chosen.only:
        stage = Stage(connect, chosen.image, chosen.budget, tqdm.write)
        rows = []
        models = chosen.models or (MODEL_NAMES[:1] if chosen.quick else MODEL_NAMES)
        for case in tqdm(cases(models, chosen.links), unit="case"):
            tqdm.write(str(case))
            rows.append(compare(stage, case, record, epochs=chosen.epochs, quick=chosen.quick))
            tqdm.write(_table(rows, _REAL))  # print an intermediate table, because each case takes half an hour or more
        result["real"] = rows
    if "interruption" in chosen.only:
        gaps = measure_gaps(Stage(connect, chosen.image, chosen.budget, tqdm.write), cases()[0])
        result["interruption"] = gaps
        print(f"Longest time without a sample when nodes are added: {gaps['live_s']:.1f} s; ", end="")
        print(f"with a restart of all nodes: {gaps['restart_s']:.1f} s")
    if "deadline" in chosen.only:
        rows = compare_by_deadline(Stage(connect, chosen.image, chosen.budget, tqdm.write))
        result["deadline"] = rows
        print(_table(rows, _DEADLINE))
    if "alone" in chosen.only or "shared" in chosen.only:
        curves = {name: _recorded_curve(name, record) for name in tqdm(MODELS, unit="model")}
        result["curves"] = {name: asdict(curve) for name, curve in curves.items()}
    if "alone" in chosen.only:
        alone = [(cluster, name, seed) for cluster in CLUSTERS for name in curves for seed in range(_ALONE_SEEDS)]
        rows = [
            simulate_alone(name, curves[name], cluster, chosen.restart_s, seed)
            for cluster, name, seed in tqdm(alone, desc="alone")
        ]
        result["alone"] = rows
        print(_table(rows, _ALONE))
    if "shared" in chosen.only:
        seeds = 3 if chosen.quick else 10
        shared = [(cluster, mix) for cluster in CLUSTERS for mix in JOB_MIXES]
        rows = [
            row
            for cluster, mix in tqdm(shared, desc="shared")
            for row in simulate_sharing(curves, cluster, mix, seeds, chosen.restart_s)
        ]
        result["multi_job"] = rows
        print(_table(rows, _SHARED))
        print(_table(_differences(rows), _DIFFERENCES))
    if chosen.json:
        chosen.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0


def _recorded_curve(name: str, record: Record) -> Curve:
    key = f"curve/{name}"
    if key not in record:
        record.add(key, asdict(measure(name)))
    return Curve(**record[key])


# Columns of the tables: heading to format string.
_REAL = {
    "model": "{model}",
    "case": "{case}",
    "of best": "{speed_vs_best:.2f}",
    "of Optimus": "{speed_vs_optimus:.2f}",
    "reached": "{settle_s:.0f} s",
    "Optimus": "{settle_s_optimus:.0f} s",
    "settled": "{settled} / {settled_optimus}",
    "restarts": "{restarts} / {restarts_optimus}",
    "lost": "{lost_samples}",
    "accuracy": "{accuracy:.3f}",
    "of fixed": "{accuracy_fixed:.3f}",
}
_DEADLINE = {
    "deadline": "{deadline_s:.0f} s",
    "nodes": "{decider}",
    "done after": "{finished_s:.1f} s",
    "late": "{error_pct:+.2f} %",
    "cores": "{mean_cores:.2f}",
    "ended on": "{configuration}",
}
_ALONE = {
    "cluster": "{cluster}",
    "model": "{model}",
    "seed": "{seed}",
    "of best": "{speed_vs_best:.2f}",
    "of FA-BF": "{speed_vs_fixed:.2f}",
    "of Optimus": "{speed_vs_optimus:.2f}",
    "reached": "{settle_s:.0f} s",
    "Optimus": "{settle_s_optimus:.0f} s",
    "done": "{jct_h:.2f} h",
    "with restarts": "{jct_h_restarted:.2f} h",
    "Optimus's": "{jct_h_optimus:.2f} h",
    "changes": "{changes}",
    "Optimus's changes": "{restarts_optimus}",
    "ended on": "{configuration}",
}
_SHARED = {
    "cluster": "{cluster}",
    "length": "{length:g}",
    "every": "{interval_h:g} h",
    "policy": "{policy}",
    "done after": "{done_s:.0f} +- {done_s_sd:.0f} s",
    "queued": "{queued_s:.0f} +- {queued_s_sd:.0f} s",
    "ran": "{run_s:.0f} +- {run_s_sd:.0f} s",
    "most queued": "{most_queued:.1f}",
    "started on": "{first_cores:.0f}",
    "in use": "{in_use:.0%}",
    "restarts per job": "{restarts:.1f}",
}
_DIFFERENCES = {
    "cluster": "{cluster}",
    "length": "{length:g}",
    "every": "{interval_h:g} h",
    "policy": "{policy}",
    "than": "{other}",
    "done": "{done_s}",
    "queued": "{queued_s}",
    "ran": "{run_s}",
}


def _differences(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row of relative differences for each pair of a policy and another one that is compared with it."""
    pairs = (("growing", "optimus"), ("growing", "fixed"), ("optimus", "fixed"))
    return [
        {**row, "other": other} | {key: _format_difference(row, f"{key}_vs_{other}") for key in COMPARED}
        for row in rows
        for policy, other in pairs
        if row["policy"] == policy
    ]


def _format_difference(row: dict[str, Any], key: str) -> str:
    return f"{100 * row[key]:+.1f} +- {100 * row[key + '_sd']:.1f} %" if row[key] is not None else "-"


def _table(rows: Sequence[dict[str, Any]], columns: dict[str, str]) -> str:
    lines = [list(columns), *([form.format(**row) for form in columns.values()] for row in rows)]
    widths = [max(len(line[place]) for line in lines) for place in range(len(columns))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)


if __name__ == "__main__":
    sys.exit(main())
