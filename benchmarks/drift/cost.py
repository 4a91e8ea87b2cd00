"""Time and memory of one check of a Parquet file with 20 columns, by number of rows and tool.

Each check runs in its own process, with limits on CPU time and memory.
"""

from __future__ import annotations

import json
import signal
import statistics
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from benchmarks.drift.environments import FOLDER, run_adapter
from benchmarks.drift.tools import TOOLS

DEFAULT_ROWS = (10_000, 100_000, 1_000_000, 10_000_000)
CHECKED = ("paceline", "evidently", "nannyml", "alibi-fdr")
FIGURES = ("cpu_s", "check_s", "start_cpu_s", "start_s", "peak_mib")
LIMIT_S, MEMORY_MIB = 120, 8 * 1024
# Time limit, in seconds, for a process that gets hardly any CPU time.
TIMEOUT_S = 5 * LIMIT_S
REPEATS, REPEATED_ROWS = 3, 100_000
PART_ROWS = 1_000_000
_OUT_OF_MEMORY = ("MemoryError", "Unable to allocate", "bad_alloc", "malloc of size", "realloc of size", "alloc failed")


def measure_checks(sizes: Sequence[int]) -> list[dict[str, Any]]:
    """Return medians and ranges of ``FIGURES`` for each tool and number of rows.

    ``outcome`` is "", or the reason why there are no figures. A tool that exceeds a limit does not check larger files.
    """
    results, stopped = [], set()
    small = _write_file(1000, 0)
    for rows in sorted(sizes):
        files = [small, *(_write_file(rows, seed) for seed in (0, 1))]
        runs: dict[str, list[dict[str, Any]]] = {tool: [] for tool in CHECKED if tool not in stopped}
        for _ in range(REPEATS if rows <= REPEATED_ROWS else 1):
            for tool in runs:
                if tool not in stopped:
                    runs[tool].append(_check(tool, files))
                    if runs[tool][-1]["outcome"]:
                        stopped.add(tool)
        for tool, repeats in runs.items():
            result = {"rows": rows, "tool": tool, "outcome": repeats[-1]["outcome"]}
            for key in FIGURES:
                values = [run[key] for run in repeats if not run["outcome"]]
                result[key] = [statistics.median(values), min(values), max(values)] if values else None
            results.append(result)
            print("  " + _describe(result), flush=True)
    return results


def _describe(result: dict[str, Any]) -> str:
    label = TOOLS[result["tool"]].label
    if result["outcome"]:
        return f"{result['rows']:>11,} rows  {result['outcome']:>44}  {label}"
    seconds, least, most = result["cpu_s"]
    figures = f"{seconds:.2f} ({least:.2f} to {most:.2f}) s of CPU, {result['check_s'][0]:.2f} s"
    memory = f"{result['peak_mib'][0]:,.0f} MiB, start {result['start_cpu_s'][0]:.1f} s of CPU"
    return f"{result['rows']:>11,} rows  {figures:>44}  {memory}  {label}"


def _check(tool: str, files: Sequence[Path]) -> dict[str, Any]:
    environment = TOOLS[tool].environment
    try:
        done = run_adapter(environment, "files", *files, tool, LIMIT_S, MEMORY_MIB, timeout_s=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return {"outcome": f"> {TIMEOUT_S} s"}
    if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return {"outcome": f"> {LIMIT_S} s of CPU"}
    if done.returncode and any(text in done.stderr for text in _OUT_OF_MEMORY):
        return {"outcome": f"out of memory ({MEMORY_MIB / 1024:g} GiB)"}
    if done.returncode:
        raise RuntimeError(f"{tool}: the check failed with {done.returncode}: {done.stderr.strip()[-2000:]}")
    result: dict[str, Any] = json.loads(done.stdout.rstrip().rpartition("\n")[2])
    return {**result, "outcome": ""}


def _write_file(rows: int, seed: int) -> Path:
    """Write ten columns of floats, six of integers and four of labels, unless the file exists; return its path."""
    path = FOLDER / "files" / f"{rows}-{seed}.parquet"
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    labels = pa.array([f"label {i}" for i in range(50)])
    part = path.with_suffix(".part")
    writer: parquet.ParquetWriter | None = None
    for start in range(0, rows, PART_ROWS):
        n = min(PART_ROWS, rows - start)
        columns: dict[str, Any] = {f"float_{i}": rng.standard_normal(n, np.float32) for i in range(10)}
        columns |= {f"integer_{i}": rng.integers(0, 1000, n, np.int32) for i in range(6)}
        codes = (rng.integers(0, 50, n, np.int8) for _ in range(4))
        columns |= {f"label_{i}": labels.take(pa.array(code)) for i, code in enumerate(codes)}
        table = pa.table(columns)
        writer = writer or parquet.ParquetWriter(part, table.schema)
        writer.write_table(table)
    if writer is not None:
        writer.close()
    return part.rename(path)
