"""The table of the benchmark, in Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.deadline.run import was_out_of_cores
from benchmarks.frameworks.cases import CASES
from paceline.train.pacing.share import whole_cores

_HEADINGS = (
    "library",
    "steps",
    "deadline",
    "ended",
    "deviation",
    "cores on average",
    "threads",
    "core-seconds, and of those on all cores",
    "simulated: mean, largest",
)


def thread_summary(lines: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Return the range of the thread counts, and the share of the lines whose count fits in the allocation.

    Each line has the steps done, the number of threads and the allocation. A count fits if it is at most the
    allocation, rounded up to whole cores.

    >>> thread_summary([(1, 2, 2.0), (2, 2, 1.3), (3, 2, 0.9), (4, 1, 0.9)])
    {'least': 1, 'most': 2, 'fitting': 0.75}
    """
    counts = [int(threads) for _, threads, _ in lines]
    fitting = [threads <= whole_cores(devices) for _, threads, devices in lines]
    return {"least": min(counts), "most": max(counts), "fitting": sum(fitting) / len(fitting)}


def row(library: str, cores: float, run: Mapping[str, Any], simulated: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of a library: those of its training by the deadline, and those of the simulation."""
    predicted = cores * run["shortest_s"]
    figures = ("steps", "deadline_s", "finished_s", "errors_pct", "mean_devices", "core_seconds", "cpu_seconds")
    return {
        "library": library,
        **{name: run[name] for name in figures},
        "predicted_core_seconds": predicted,
        "of_predicted": run["core_seconds"] / predicted,
        "threads": thread_summary(run["threads"]) if CASES[library].adapts_threads else None,
        "native_threads": run["metrics"].get("native_threads"),
        "out_of_cores": was_out_of_cores(dict(run), cores),
        "other_cores": run["other_cores"],
        "resizes": run["resizes"],
        "mechanism": run["mechanism"],
        "simulated": dict(simulated),
    }


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Format the rows; a star marks a run that was late although it had all cores in its second half.

    Such a run is repeated once; its deviation then follows in parentheses.
    """
    return _markdown(_HEADINGS, map(_cells, rows))


def simulated_table(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Format the results of the simulation alone."""
    rows = ([CASES[name].title, str(result["steps"]), _simulated(result)] for name, result in results.items())
    return _markdown(("library", "steps", _HEADINGS[-1]), rows)


def _markdown(headings: Sequence[str], rows: Any) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("|".join(["", *(f" {cell} " if cell != "---" else cell for cell in line), ""]) for line in lines)


def _cells(row: Mapping[str, Any]) -> list[str]:
    threads = row["threads"]
    if threads is None:
        used = f"{row['native_threads']:.0f}, fixed"
    elif threads["least"] == threads["most"]:
        used = f"{threads['least']}"
    else:
        used = f"{threads['least']} to {threads['most']}"
    *earlier, error = row["errors_pct"]
    fitting = f" ({100 * threads['fitting']:.0f} % fit)" if threads is not None else ""
    return [
        CASES[row["library"]].title,
        f"{row['steps']}",
        f"{row['deadline_s']:.1f} s",
        f"{row['finished_s']:.1f} s",
        f"{error:+.2f} %"
        + ("*" if row["out_of_cores"] else "")
        + "".join(f" (before: {one:+.2f} %)" for one in earlier),
        f"{row['mean_devices']:.2f}",
        used + fitting,
        f"{row['core_seconds']:.1f}, {100 * row['of_predicted']:.0f} %",
        _simulated(row["simulated"]),
    ]


def _simulated(result: Mapping[str, Any]) -> str:
    return f"{result['mean_abs_error_pct']:.2f} %, {result['largest_error_pct']:+.2f} %"
