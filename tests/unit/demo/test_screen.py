"""The demo's console output, on a terminal and in a log."""

from __future__ import annotations

import io

from demo.screen import Screen, pace_line
from demo.watch import last_errors
from rich.console import Console

PACE = {
    "state": "training", "progress_pct": 61.94, "setpoint_pct": 60.0, "devices": 0.85, "forecast_s": 59.13,
    "deadline_s": 60.0, "feasible": True,
}  # fmt: skip


def _make_screen() -> tuple[Screen, io.StringIO]:
    out = io.StringIO()
    return Screen(Console(file=out, width=80, highlight=False)), out


def test_pace_line_shows_progress_setpoint_cores_and_forecast() -> None:
    line = pace_line(PACE, 31.0).plain
    assert line.startswith("▸   31.0 s  Training ")
    assert line.endswith("  61.9 %, setpoint  60.0 %, 0.85 cores, ends at 59.1 s of 60 s")
    starting = {**PACE, "state": "starting", "progress_pct": 0, "forecast_s": None}
    assert pace_line(starting).plain.endswith("0.85 cores, reading the data"), "before the first batch"
    assert "0.0 %" in pace_line({}).plain, "for a sample without values"
    narrow = pace_line(
        {**PACE, "forecast_s": 159.3, "deadline_s": 160, "progress_pct": 100, "setpoint_pct": 100}, bar=5
    )
    assert len(narrow.plain) <= 80
    assert narrow.plain.endswith("ends at 159.3 s of 160 s")


def test_pace_line_highlights_late_forecast_and_keeps_bar_length() -> None:
    styles = {str(span.style) for span in pace_line({**PACE, "forecast_s": 70}).spans}
    assert "yellow" in styles
    assert "yellow" not in {str(span.style) for span in pace_line(PACE).spans}
    bars = [pace_line({**PACE, "progress_pct": pct, "setpoint_pct": 100}) for pct in (0, 50, 99.9, 100)]
    assert [line.plain.count("━") for line in bars] == [28] * 4
    assert bars[0].spans != bars[-1].spans


def test_log_lines_are_not_wrapped_and_training_lines_are_throttled() -> None:
    screen, out = _make_screen()
    with screen.live_line():
        screen.show_activity("not shown in a log")
        for _ in range(5):
            screen.show_training(PACE)
    screen.step("Drift", "x" * 200)
    lines = out.getvalue().splitlines()
    assert len(lines) == 2
    assert "ends at 59.1 s of 60 s" in lines[0]
    assert lines[1].endswith("x" * 200)


def test_progress_of_a_task_is_a_line_of_a_log() -> None:
    screen, out = _make_screen()
    with screen.live_line():
        screen.show_progress("profiling", "Point 1 of 24: lga [0.06 ms]")
        screen.show_progress("profiling", "Point 2 of 24: lga 0.06 ms")  # less than five seconds later
    (line,) = out.getvalue().splitlines()
    assert line.endswith("s  Point 1 of 24: lga [0.06 ms]")


def test_markup_in_external_text_is_escaped() -> None:
    screen, out = _make_screen()
    screen.step("Run", "manual__[bold]x[/bold]", more="[red]y")
    screen.print_plain("see [/tmp]")
    assert "manual__[bold]x[/bold]" in out.getvalue()
    assert "[red]y" in out.getvalue()
    assert "see [/tmp]" in out.getvalue()


def test_errors_at_the_end_of_a_long_log_are_returned() -> None:
    log = [{"event": f"warning {i}", "level": "warning"} for i in range(50)]
    log += ["text", {"event": "chatter", "level": "info"}, {"event": "Task failed", "level": "error"}]
    lines = last_errors(log)
    assert lines[-1] == "Task failed"
    assert len(lines) == 12
    assert "chatter" not in lines
