"""The journal of a run: it writes each event to the log as a sentence and to the history as a record."""

from __future__ import annotations

import logging
from typing import Any

from paceline.contract import RunEvent
from paceline.run._history import History


class Journal:
    """Log and history of one run.

    >>> journal = Journal(History(), logging.getLogger("example"))
    >>> journal.event(12.5, "deadline", "Deadline moved from %.0f s to %.0f s", 100, 80, after_s=80)
    >>> journal.history.to_json()["events"]
    [{'t_s': 12.5, 'kind': 'deadline', 'after_s': 80.0}]
    """

    def __init__(self, history: History, log: logging.Logger | Any) -> None:
        self.history = history
        self.log = log
        self.has_new_events = True

    def event(
        self, now_s: float, kind: str, message: str, *args: object, level: int = logging.INFO, **details: Any
    ) -> None:
        """Log ``message % args`` and add the event with its ``details`` to the history."""
        self.log.log(level, message, *args)
        self.history.add_event(RunEvent(t_s=now_s, kind=kind, **details))
        self.has_new_events = True
