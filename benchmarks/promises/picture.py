"""Draws the guide's picture of core sharing: the stacked allocations of jobs over time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from paceline.airflow.api import AirflowApi
from paceline.contract import PaceSample


def draw(airflow: AirflowApi, runs: Sequence[tuple[str, str, str]], cores: float, path: Path) -> None:
    """Draw the runs, each a tuple (name, DAG, run), that shared ``cores`` cores."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    lines: dict[str, list[tuple[float, float]]] = {}
    deadlines_s: list[float] = []
    for name, dag_id, run_id in runs:
        origin_s = PaceSample.model_validate(airflow.task_state(dag_id, run_id, "train", "pace")).origin.timestamp()
        history = airflow.task_state(dag_id, run_id, "train", "history")
        at, held = (history["columns"].index(column) for column in ("t_s", "devices"))
        lines[name] = [(origin_s + row[at], row[held]) for row in history["samples"]]
        deadlines_s.append(origin_s + airflow.xcom(dag_id, run_id, "train")["deadline_s"])
    begin_s = min(line[0][0] for line in lines.values())
    seconds = range(int(max(line[-1][0] for line in lines.values()) - begin_s) + 2)

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    stacked = [[_devices_at(line, begin_s + second) for second in seconds] for line in lines.values()]
    shades = axes.stackplot(seconds, stacked, labels=list(lines), step="post", alpha=0.85)
    for shade, deadline_s in zip(shades, deadlines_s, strict=True):
        axes.axvline(deadline_s - begin_s, color=shade.get_facecolor()[0], linewidth=1.5)
    axes.axhline(cores, color="0.3", linestyle="--", linewidth=1)
    axes.set(xlabel="seconds (lines: deadlines)", ylabel="cores", xlim=(0, seconds[-1]), ylim=(0, cores * 1.12))
    axes.legend(frameon=False, fontsize="small", loc="upper left", bbox_to_anchor=(1.0, 1.0))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def _devices_at(line: Sequence[tuple[float, float]], now_s: float) -> float:
    before = [devices for at_s, devices in line if at_s <= now_s]
    return before[-1] if before and now_s <= line[-1][0] else 0.0
