"""Measures the core-seconds that the right thread count saves for the same batches on the same allocation.

``python -m benchmarks.threads [--quick] [--json FILE]`` trains real models in containers on constant allocations. The
thread count is torch's default (one for each core of the machine), the allocation rounded up, or the choice of
``track``.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from demo.signals import end_on_sigterm
from tqdm import tqdm

from benchmarks.deadline.__main__ import MODEL_NAMES
from benchmarks.deadline.cells import Record
from benchmarks.deadline.run import Trainer
from benchmarks.engine import runtimes

SHARES = (0.5, 1.0, 1.25, 1.5)
BATCHES = 100


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark, print its table and write the figures as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.threads", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one model, two allocations (about three minutes)")
    parser.add_argument("--image", default="paceline-trainer:latest", help="image with Python and torch")
    parser.add_argument("--folder", type=Path, default=Path("build/threads"), help="record of finished runs")
    parser.add_argument("--json", type=Path, default=None, metavar="FILE")
    chosen = parser.parse_args(arguments)
    end_on_sigterm()
    trainer, record = Trainer(*runtimes(cluster=False), chosen.image), Record(chosen.folder / "runs.jsonl")
    models, shares = (MODEL_NAMES[:1], SHARES[1:3]) if chosen.quick else (MODEL_NAMES, SHARES)
    rows: list[dict[str, Any]] = []
    policies: dict[str, Any] = {
        "one for each core": lambda share: int(trainer.cores),
        "share rounded up": math.ceil,
        "chosen": lambda share: None,
    }
    print(f"{'model':13} {'cores':>5} {'threads':>18} {'core-s / 100 batches':>21} {'CPU-s':>7} {'batches/s':>9}")
    for model, share in tqdm([(model, share) for model in models for share in shares]):
        for policy, threads in policies.items():
            name = f"{model}/{share:g}/{policy}"
            if name not in record:
                run = trainer.train_constant(model, BATCHES, share, 1e4, threads=threads(share)).to_dict()
                record.add(name, {key: run[key] for key in ("finished_s", "cpu_seconds", "learned")})
            run = record[name]
            training_s = run["finished_s"] - run["learned"]["startup_s"] - run["learned"]["tail_s"]
            row = {
                "model": model,
                "cores": share,
                "threads": policy,
                "core_s_per_100_batches": round(100 * share * training_s / BATCHES, 2),
                "cpu_s": round(run["cpu_seconds"], 2),
                "batches_per_s": round(BATCHES / training_s, 3),
            }
            rows.append(row)
            tqdm.write("{:13} {:5.2f} {:>18} {:21.2f} {:7.2f} {:9.3f}".format(*row.values()))
    for policy in policies:
        spent = sum(row["core_s_per_100_batches"] for row in rows if row["threads"] == policy)
        chosen_spent = sum(row["core_s_per_100_batches"] for row in rows if row["threads"] == "chosen")
        print(f"{policy:>18}: {spent:8.2f} core-seconds, track saves {100 * (spent - chosen_spent) / spent:+.1f} %")
    if chosen.json:
        chosen.json.write_text(json.dumps({"rows": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
