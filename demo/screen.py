"""Console output of the demo: one line per step with the elapsed time, and a live line during training.

Used by the demo only. Without a terminal, the live line is printed as a normal line every few seconds.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.padding import Padding
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

_BAR = 28
_NARROW = 110  # on a terminal with fewer columns, the live line has a short bar and no time
_PLAIN_EVERY_S = 5.0
_INDENT = 12


class Screen:
    """Prints finished steps with their times, a spinner for the current activity, and a progress line for training."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)
        self._started_s = time.monotonic()
        self._plain_due_s = 0.0
        self._last_line = ""
        self._live: Live | None = None

    def title(self, text: str, explanation: str) -> None:
        """Print the demo's title."""
        self.console.print(f"\n[bold]{text}[/]\n[dim]{explanation}[/]\n")

    def step(self, name: str, text: str, more: str = "") -> None:
        """Print the result of a finished step."""
        self._print_step("[green]✓[/]", name, text)
        if more:
            self.note(more)

    def note(self, text: str) -> None:
        """Print an indented line below the last step."""
        dim = f"[dim]{escape(text)}[/]"
        if self.console.is_terminal:
            self.console.print(Padding(dim, (0, 0, 0, _INDENT)))
        else:
            self.console.print(" " * _INDENT + dim, soft_wrap=True)

    def print_failure(self, name: str, text: str) -> None:
        """Print a failed step and its error."""
        self._print_step("[red]✗[/]", name, text)

    def print_plain(self, text: str) -> None:
        """Print text without markup."""
        self.console.print(escape(text), soft_wrap=True)

    @contextmanager
    def live_line(self) -> Iterator[None]:
        """Show a live line at the bottom during the block; the methods ``show_…`` update it."""
        if not self.console.is_terminal:
            yield
            return
        with Live(console=self.console, transient=True, refresh_per_second=8) as live:
            self._live = live
            try:
                yield
            finally:
                self._live = None

    def show_activity(self, text: str) -> None:
        """Show the current activity."""
        if self._live is not None:
            self._live.update(Spinner("dots", Text(f"{self._elapsed_s():6.1f} s  {text}", style="dim")))

    def show_progress(self, activity: str, line: str) -> None:
        """Show the current activity with the newest line of its log."""
        if self._live is not None:
            self.show_activity(f"{activity}: {line}")
        elif line != self._last_line and self._is_plain_due():
            self._last_line = line
            self.console.print(f"▸ {self._elapsed_s():6.1f} s  {escape(line)}", soft_wrap=True)

    def show_training(self, pace: Mapping[str, Any]) -> None:
        """Show the newest sample of the running training job."""
        if self._live is not None:
            narrow = self.console.width < _NARROW
            self._live.update(pace_line(pace, None if narrow else self._elapsed_s(), bar=5 if narrow else _BAR))
        elif self._is_plain_due():
            self.console.print(pace_line(pace, self._elapsed_s()), soft_wrap=True)

    def _is_plain_due(self) -> bool:
        """Return whether a log is due for a line of progress; if so, the next one is due seconds later."""
        is_due = time.monotonic() >= self._plain_due_s
        if is_due:
            self._plain_due_s = time.monotonic() + _PLAIN_EVERY_S
        return is_due

    def _print_step(self, mark: str, name: str, text: str) -> None:
        prefix, message = f"{mark} {self._elapsed_s():6.1f} s", f"[bold]{escape(name)}[/]: {escape(text)}"
        if not self.console.is_terminal:  # do not wrap lines in a log
            self.console.print(f"{prefix}  {message}", soft_wrap=True)
            return
        row = Table.grid(padding=(0, 2, 0, 0))
        row.add_column(no_wrap=True)
        row.add_column()
        row.add_row(prefix, message)
        self.console.print(row)

    def _elapsed_s(self) -> float:
        return time.monotonic() - self._started_s


def pace_line(pace: Mapping[str, Any], elapsed_s: float | None = None, bar: int = _BAR) -> Text:
    """Return one line with progress, setpoint, cores and forecast.

    >>> pace = {"progress_pct": 50, "setpoint_pct": 52.3, "devices": 0.85, "forecast_s": 59.2, "deadline_s": 60}
    >>> pace_line(pace).plain.split("━ ")[1]
    ' 50.0 %, setpoint  52.3 %, 0.85 cores, ends at 59.2 s of 60 s'
    """
    progress, setpoint = float(pace.get("progress_pct") or 0), float(pace.get("setpoint_pct") or 0)
    forecast_s, deadline_s = pace.get("forecast_s"), pace.get("deadline_s")
    line = Text.assemble(
        ("▸ ", "cyan"),
        "" if elapsed_s is None else f"{elapsed_s:6.1f} s  ",
        ("Training ", "bold"),
        _progress_bar(progress, setpoint, bar),
        f" {progress:5.1f} %",
        (f", setpoint {setpoint:5.1f} %, ", "dim"),
        (f"{float(pace.get('devices') or 0):.2f} cores", "cyan"),
        no_wrap=True,
        overflow="ellipsis",
    )
    if pace.get("state") == "starting":
        line.append(", reading the data", "dim")
    elif pace.get("state") == "finishing":
        line.append(", saving the model", "dim")
    elif forecast_s is not None:
        late = deadline_s is not None and forecast_s > deadline_s
        deadline = "" if deadline_s is None else f" of {deadline_s:g} s"
        line.append(f", ends at {forecast_s:.1f} s{deadline}", "yellow" if late else "green")
    return line


def _progress_bar(progress_pct: float, setpoint_pct: float, width: int) -> Text:
    """Return a progress bar with a mark at the setpoint."""
    full = width if progress_pct >= 100 else int(progress_pct / 100 * width)
    mark = min(width - 1, int(setpoint_pct / 100 * width))
    bar = Text("━" * full, style="green") + Text("━" * (width - full), style="bright_black")
    bar.stylize("bold white", mark, mark + 1)
    return bar
