"""The clock of a training task, and the time from which it counts. Both are right if this machine's clock is set.

``DeadlineTrainingOperator`` creates the clock; ``TaskHost`` asks for the origin.
"""

from __future__ import annotations

import os
import time
from datetime import datetime, timedelta, timezone
from email.utils import parsedate_to_datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from paceline.run.clock import Clock, SystemClock, seconds_since_boot
from paceline.run.within import within
from paceline.runtime.processes import identify

if TYPE_CHECKING:
    from airflow.sdk import Context

_TIMEOUT_S = 1.5
_MAX_ERROR_S = 2.0  # the API server's answer contains whole seconds, and the server (uvicorn) renews them each second
_TURNS = 10  # of the server's event loop between two renewals; a request takes at least one turn


def task_clock(log: Any) -> SystemClock:
    """Return a clock in the API server's time if this machine's clock is wrong: Airflow's dates are in this time."""
    ahead_s, took_s = within(_TIMEOUT_S, _ahead_s, default=(0.0, 0.0))
    if -_MAX_ERROR_S <= ahead_s <= _MAX_ERROR_S + _TURNS * took_s:  # a busy server's time may be old, but not too new
        return SystemClock()
    log.warning("This machine's clock differs from the API server's by %+.0f s: using the API server's time", ahead_s)
    return SystemClock(time.time() - ahead_s)


def _ahead_s() -> tuple[float, float]:
    """Return how far this machine's clock is ahead of the API server's, and how long the request took.

    Both are 0 without an API server.
    """
    import httpx
    from airflow.sdk.api.client import Client
    from airflow.sdk.configuration import conf

    url = conf.get("core", "execution_api_server_url", fallback="")
    url = url or conf.get("api", "base_url", fallback="").rstrip("/") + "/execution/"
    if not url.startswith("http"):
        return 0.0, 0.0
    with Client(base_url=url, token="") as client:
        get = partial(httpx.Client.request, client, "GET", "health")  # Client.request would repeat a failed call
        get()  # opens the connection, which does not count as time of the request
        sent_s = time.monotonic()
        answer = get()
        took_s, now_s = time.monotonic() - sent_s, time.time()
    return now_s - (parsedate_to_datetime(answer.headers["date"]).timestamp() + 0.5 + took_s / 2), took_s


def origin(context: Context, deadline_from: str, clock: Clock, age_s: float | None = None) -> datetime:
    """Return the time from which a deadline's duration counts: the start of the DAG run, or of this task.

    ``airflow dags test`` reports the logical date as the start of the run. In that case, use the later ``run_after``.

    Parameters
    ----------
    context, deadline_from:
        Airflow's context of the try; ``"run"`` or ``"task"``.
    clock:
        The clock of the control loop.
    age_s:
        Age of this process, which is also the age of the task. Default: from the kernel.
    """
    now = datetime.fromtimestamp(clock.now(), timezone.utc)
    if deadline_from == "task":
        started = context["ti"].start_date
        if started is None:
            return now
        # The kernel's age of the process does not change if the clock is set after Airflow has recorded the start. With
        # `airflow dags test`, the process is older than the task.
        elapsed_s = min(time.time() - started.timestamp(), _process_age_s() if age_s is None else age_s)
        return now - timedelta(seconds=max(elapsed_s, 0.0))
    run = context["dag_run"]
    moments: list[datetime | None] = [run.start_date, getattr(run, "run_after", None)]
    known = [moment.astimezone(timezone.utc) for moment in moments if moment is not None]
    return min(max(known, default=now), now)


def _process_age_s() -> float:
    this = identify(os.getpid())
    assert this is not None  # this process is running
    return seconds_since_boot() - this.born_s
