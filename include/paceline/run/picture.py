"""Plots a stored history: progress and setpoint above, devices below."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.contract import StoredHistory
from paceline.errors import InvalidInputError
from paceline.extras import require

_PROGRESS, _SETPOINT, _DEVICES, _DEADLINE = "#1f6feb", "#24292f", "#2da44e", "#cf222e"


def draw(
    history: Mapping[str, Any] | StoredHistory, path: str | os.PathLike[str], *, title: str = "", unit: str = "cores"
) -> Path:
    """Plot a run to a file and return the path; the extension of ``path`` sets the format, for example PNG.

    Parameters
    ----------
    history:
        The value of the task state store's key ``history``, also as a :class:`~paceline.contract.StoredHistory`.
    path:
        File to write; missing folders are created.
    title:
        Title of the figure.
    unit:
        Label of the device axis.

    Raises
    ------
    InvalidInputError
        The value is not a history.

    Examples
    --------
    >>> import tempfile
    >>> from paceline.run import History
    >>> history = History()
    >>> for second in range(10):
    ...     history.add(t_s=second, progress_pct=10 * second, setpoint_pct=10 * second, devices=1.5, deadline_s=10)
    >>> draw(history.to_json(), tempfile.mkdtemp() + "/pace.png").name
    'pace.png'
    >>> draw({"columns": []}, "pace.png")
    Traceback (most recent call last):
    paceline.errors.InvalidInputError: history: got {'columns': []}, expected the value of the key history of a run
    """
    require("worker", "matplotlib")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    stored = StoredHistory.read(history)
    if stored is None:
        raise InvalidInputError("history", history, "the value of the key history of a run")
    table = {name: [row[index] for row in stored.samples] for index, name in enumerate(stored.columns)}
    times = table["t_s"]
    figure = Figure(figsize=(9, 6), layout="constrained")
    FigureCanvasAgg(figure)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[3, 2])
    if title:
        figure.suptitle(title, fontsize=12)
    deadline_s = next((value for value in reversed(table["deadline_s"]) if value is not None), None)
    if deadline_s is not None:
        setpoints = table["setpoint_pct"]
        above.plot(times, setpoints, color=_SETPOINT, linestyle="--", linewidth=1.5, label="setpoint", zorder=3)
    above.plot(times, table["progress_pct"], color=_PROGRESS, linewidth=2, label="progress")
    above.set_ylabel("progress in %")
    above.set_ylim(0, 105)
    below.step(times, table["devices"], where="post", color=_DEVICES, linewidth=1.5)
    below.fill_between(times, table["devices"], step="post", color=_DEVICES, alpha=0.15)
    below.set_ylabel(unit)
    below.set_ylim(bottom=0)
    below.set_xlabel("seconds" if deadline_s is None else "seconds since the deadline started to count")
    for axes in (above, below):
        axes.grid(alpha=0.2)
        axes.spines[["top", "right"]].set_visible(False)
        if deadline_s is not None:
            axes.axvline(deadline_s, color=_DEADLINE, linewidth=1.2, label="deadline")
        for event in stored.events:
            axes.axvline(event.t_s, color=_SETPOINT, linewidth=0.8, linestyle=":")
    for event in stored.events:
        above.annotate(event.kind.replace("_", " "), (event.t_s, 102), fontsize=8, rotation=20, color=_SETPOINT)
    above.legend(loc="upper left", frameon=False)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    return path
