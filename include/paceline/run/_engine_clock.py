"""Converts a job's end time from the engine's clock, which may be wrong. Used by the control loop."""

from __future__ import annotations

_MAX_ERROR_S = 1.5  # a line may be read a second late, so a smaller offset does not prove a clock error


def end_of_job_s(engine_s: float, offset_s: float | None, earliest_s: float, now_s: float) -> float:
    """Return the end time of a job on the local clock.

    Parameters
    ----------
    engine_s:
        End time on the engine's clock. This time and the result are in seconds after the same origin.
    offset_s:
        Local time minus job time, from the timestamps in the job's lines; ``None`` without lines. A large offset shows
        that the engine's clock is wrong.
    earliest_s, now_s:
        Bounds of the result. If the end is before ``earliest_s``, the engine's clock was changed: return ``now_s``.

    Examples
    --------
    >>> end_of_job_s(50.0, None, 40.0, 60.0), end_of_job_s(80.0, -30.0, 40.0, 60.0)
    (50.0, 50.0)
    >>> end_of_job_s(-3550.0, 0.1, 40.0, 60.0), end_of_job_s(3650.0, 0.1, 40.0, 60.0)
    (60.0, 60.0)
    """
    ended_s = engine_s if offset_s is None or abs(offset_s) <= _MAX_ERROR_S else engine_s + offset_s
    return min(ended_s, now_s) if ended_s > earliest_s - _MAX_ERROR_S else now_s
