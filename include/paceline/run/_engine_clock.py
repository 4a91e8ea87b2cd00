"""Conversion of a job's end from its engine's clock, which may be wrong. Used by the control loop."""

from __future__ import annotations

_MAX_ERROR_S = 1.5  # a line may be read a second late, so a smaller offset does not prove a clock error


def end_of_job_s(engine_s: float, offset_s: float | None, earliest_s: float, now_s: float) -> float:
    """Return when a job ended, on the local clock.

    Parameters
    ----------
    engine_s:
        End of the job by the engine's clock, in seconds after the same time as the result.
    offset_s:
        Local time minus job time, from the times in the job's lines; ``None`` without lines. A large offset reveals an
        error of the engine's clock.
    earliest_s, now_s:
        Bounds of the result. After an end before ``earliest_s``, the engine's clock was set: return ``now_s``.

    Examples
    --------
    >>> end_of_job_s(50.0, None, 40.0, 60.0), end_of_job_s(80.0, -30.0, 40.0, 60.0)
    (50.0, 50.0)
    >>> end_of_job_s(-3550.0, 0.1, 40.0, 60.0), end_of_job_s(3650.0, 0.1, 40.0, 60.0)
    (60.0, 60.0)
    """
    ended_s = engine_s if offset_s is None or abs(offset_s) <= _MAX_ERROR_S else engine_s + offset_s
    return min(ended_s, now_s) if ended_s > earliest_s - _MAX_ERROR_S else now_s
