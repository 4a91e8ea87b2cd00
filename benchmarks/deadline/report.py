"""Tables and figures of the benchmark, like tables I and III and figures 2 and 4 of DECOR-NN."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.deadline.cells import STATIC, Cell

Runs = Mapping[tuple[Cell, str, int], dict[str, Any]]


def result_rows(runs: Runs) -> list[dict[str, Any]]:
    """Return a row for each cell and controller."""
    rows = []
    for cell, controller in dict.fromkeys((cell, controller) for cell, controller, _ in runs if controller != STATIC):
        group = {repeat: run for (*key, repeat), run in runs.items() if key == [cell, controller]}
        static = {repeat: run for (*key, repeat), run in runs.items() if key == [cell, STATIC]}
        over = [
            run["core_seconds"] / static[repeat]["core_seconds"] for repeat, run in group.items() if repeat in static
        ]
        rows.append(
            {
                "model": cell.model,
                "d_c": cell.d_c,
                "changed_to": cell.changed_to,
                "controller": controller,
                "errors_pct": [run["error_pct"] for run in group.values()],
                "attempts": [run["attempts"] for run in group.values()],
                "mean_devices": round(mean(run["mean_devices"] for run in group.values()), 3),
                "core_seconds": round(mean(run["core_seconds"] for run in group.values()), 2),
                "static_core_seconds": round(mean(run["core_seconds"] for run in static.values()), 2)
                if static
                else None,
                "static_cores": [run["cores"] for run in static.values()],
                "over_static": [round(ratio, 4) for ratio in over],
                "cpu_seconds": round(mean(run["cpu_seconds"] for run in group.values()), 2),
                "step_ms_mean": round(mean(run["step_ms_mean"] for run in group.values()), 2),
            }
        )
    return rows


def summary(rows: list[dict[str, Any]]) -> dict[str, dict[str, float | None]]:
    """Return each controller's mean deviation, latest run, and cost relative to the best constant allocation."""
    summaries: dict[str, dict[str, float | None]] = {}
    for controller in dict.fromkeys(row["controller"] for row in rows):
        controller_rows = [row for row in rows if row["controller"] == controller]
        errors = [error for row in controller_rows for error in row["errors_pct"]]
        loose = [row for row in controller_rows if (row["changed_to"] or row["d_c"]) >= 1.2]
        over = [ratio for row in loose for ratio in row["over_static"]]
        summaries[controller] = {
            "mean_abs_error_pct": round(mean(map(abs, errors)), 3),
            "max_late_pct": round(max(errors), 3),
            "max_late_pct_from_1.2": round(max(error for row in loose for error in row["errors_pct"]), 3)
            if loose
            else None,
            "core_seconds_over_static": round(mean(over), 3) if over else None,
            "made_again_for_lack_of_cores": sum(tries - 1 for row in controller_rows for tries in row["attempts"]),
        }
    return summaries


def table(rows: list[dict[str, Any]]) -> str:
    """Format the rows as a table."""
    lines = [
        f"{'model':13} {'d_c':>12} {'controller':>10} {'mean cores':>10} {'mean |e|':>9} {'e min':>9} {'e max':>9} "
        f"{'core-s':>8} {'/ static':>8}"
    ]
    for row in rows:
        errors = row["errors_pct"]
        d_c = f"{row['d_c']:g}" + (f" -> {row['changed_to']:g}" if row["changed_to"] else "")
        over = f"{mean(row['over_static']):8.3f}" if row["over_static"] else f"{'':8}"
        lines.append(
            f"{row['model']:13} {d_c:>12} {row['controller']:>10} {row['mean_devices']:10.2f} "
            f"{mean(map(abs, errors)):8.2f}% {min(errors):+8.2f}% {max(errors):+8.2f}% "
            f"{row['core_seconds']:8.1f} {over}"
        )
    return "\n".join(lines)


def draw(model: str, runs: Runs, folder: Path) -> Path:
    """Draw progress, setpoint and cores of the first run of each cell of a model; return the path of the picture."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    drawn = list(dict.fromkeys(cell for cell, _, _ in runs if cell.model == model))
    figure = Figure(figsize=(4.2 * len(drawn), 5.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, len(drawn), sharex="col", sharey="row", squeeze=False)
    colours = {"default": "tab:blue", "paper": "tab:orange"}
    for column, cell in enumerate(drawn):
        above, below = axes[0][column], axes[1][column]
        above.set_title(str(cell).removeprefix(f"{model} "))
        for controller, colour in colours.items():
            run = runs.get((cell, controller, 0))
            if run is None:
                continue
            times, done, setpoint, cores = zip(*run["samples"], strict=True)
            if controller == "default":
                above.plot(times, setpoint, color="0.6", linestyle="--", linewidth=1, label="setpoint")
                above.axvline(run["deadline_s"], color="0.3", linewidth=1)
                below.axvline(run["deadline_s"], color="0.3", linewidth=1)
            above.plot(times, done, color=colour, linewidth=1.2, label=f"{controller} {run['error_pct']:+.2f} %")
            below.step(times, cores, color=colour, linewidth=1, where="post")
        above.legend(frameon=False, fontsize="small")
        below.set_xlabel("seconds")
    axes[0][0].set_ylabel("progress, %")
    axes[1][0].set_ylabel("cores")
    figure.suptitle(model)
    path = folder / f"{model}.png"
    figure.savefig(path, dpi=110)
    return path
