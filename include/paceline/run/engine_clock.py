"""The end of a job by the clock of its engine, which may be wrong. Used by the control loop."""

from __future__ import annotations

_MAX_ERROR_S = 1.5  # a line may be read a second late, so a smaller difference does not show a wrong clock


def end_of_job_s(engine_s: float, offset_s: float | None, earliest_s: float, now_s: float) -> float:
    """Return when a job ended, on the local clock.

    Parameters
    ----------
    engine_s:
        Its end by the engine's clock, in the unit of the results.
    offset_s:
        The local clock less the job's, by the times in the job's lines, which shows larger errors of the engine's
        clock; ``None`` without lines.
    earliest_s, now_s:
        Bounds of the end. An end before ``earliest_s`` is impossible: the clock was set, and the result is now.

    Examples
    --------
    >>> end_of_job_s(50.0, None, 40.0, 60.0), end_of_job_s(80.0, -30.0, 40.0, 60.0)
    (50.0, 50.0)
    >>> end_of_job_s(-3550.0, 0.1, 40.0, 60.0), end_of_job_s(3650.0, 0.1, 40.0, 60.0)
    (60.0, 60.0)
    """
    ended_s = engine_s if offset_s is None or abs(offset_s) <= _MAX_ERROR_S else engine_s + offset_s
    return min(ended_s, now_s) if ended_s > earliest_s - _MAX_ERROR_S else now_s
