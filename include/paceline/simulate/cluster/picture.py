"""Plot of a simulated cluster under several policies: waiting jobs, devices in use, finished jobs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from paceline.extras import require
from paceline.simulate.cluster._result import SimulationResult

_COLOURS = ("#1f6feb", "#2da44e", "#cf222e", "#9a6700", "#8250df", "#24292f", "#bf3989")


def draw(results: Sequence[SimulationResult], devices: float, path: str | os.PathLike[str], *, title: str = "") -> Path:
    """Plot waiting jobs, the share of devices in use, and finished jobs over time, one line for each policy.

    Parameters
    ----------
    results:
        Results of the same workload under several policies.
    devices:
        Number of devices in the cluster.
    path:
        Output file, a PNG or another matplotlib format by its suffix; missing folders are created.
    title:
        Title of the figure.
    """
    require("worker", "matplotlib")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 8), layout="constrained")
    FigureCanvasAgg(figure)
    waiting, used, done = figure.subplots(3, 1, sharex=True)
    if title:
        figure.suptitle(title, fontsize=12)
    for result, colour in zip(results, _COLOURS * len(results), strict=False):
        hours = [sample.now_s / 3600 for sample in result.samples]
        style = {"where": "post", "color": colour, "linewidth": 1.2, "label": result.policy}
        waiting.step(hours, [sample.queued for sample in result.samples], **style)
        used.step(hours, [100 * sample.used_devices / devices for sample in result.samples], **style)
        done.step(hours, [sample.done for sample in result.samples], **style)
    waiting.set_ylabel("waiting jobs")
    used.set_ylabel("devices in use, %")
    used.set_ylim(0, 105)
    done.set_ylabel("finished jobs")
    done.set_xlabel("hours")
    for axes in (waiting, used, done):
        axes.grid(alpha=0.2)
        axes.spines[["top", "right"]].set_visible(False)
    waiting.legend(loc="upper right", frameon=False)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    return path
