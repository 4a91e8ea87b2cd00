"""Live state of a job: what is said to it, and what it says of itself, while it runs.

The control loop reads and writes it. In Airflow it is the task state store, outside it is a dictionary.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from paceline.contract import CEILING, DEADLINE


class LiveState(Protocol):
    """Keys and JSON values that outlive the process, readable and writable from outside while the job runs."""

    def get(self, key: str) -> Any:
        """Return the value, ``None`` if there is none."""

    def set(self, key: str, value: Any) -> None:
        """Write a value."""

    def delete(self, key: str) -> None:
        """Forget a key; nothing happens if there is none."""


class MemoryState(dict[str, Any]):
    """Live state in a dictionary, for use outside Airflow and for tests.

    >>> state = MemoryState(deadline="20m")
    >>> state.set("ceiling", 1.5)
    >>> state.get("deadline"), state.get("ceiling"), state.get("pace")
    ('20m', 1.5, None)
    """

    def set(self, key: str, value: Any) -> None:
        """Write a value."""
        self[key] = value

    def delete(self, key: str) -> None:
        """Forget a key."""
        self.pop(key, None)


class Exchange:
    """Carries live state to and from a slow store beside the control loop, so that no control step waits for it.

    One thread writes what was posted and reads the watched keys, soon after each call of ``post`` but not more often
    than once in ``every_s`` seconds; the loop sees the newest values that arrived. A store that fails is tried again
    at the next post: control goes on meanwhile. Where it hangs on a connection that is closed for good, as a task's
    does on its supervisor, ``cut_off`` says so.

    Parameters
    ----------
    state:
        The store.
    watch:
        Keys to read at every round.
    on_trouble:
        Called with the error when a round fails and the one before did not, and with ``None`` when it works again.
    every_s:
        Shortest time between the beginnings of two rounds. The store's work may take from the same cores as the job,
        which would be held up by being watched closely.
    """

    def __init__(
        self,
        state: LiveState,
        watch: tuple[str, ...] = (DEADLINE, CEILING),
        on_trouble: Callable[[Exception | None], None] = lambda error: None,
        every_s: float = 1.0,
    ) -> None:
        self._state = state
        self._watch = watch
        self._on_trouble = on_trouble
        self._every_s = every_s
        self._outgoing: dict[str, Any] = {}
        self._incoming: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closed = threading.Event()
        self._troubled = False
        self.cut_off = False
        self._rounds, self._rounds_s = 0, 0.0
        self._thread = threading.Thread(target=self._work, name="paceline-live-state", daemon=True)
        self._thread.start()

    def post(self, values: dict[str, Any]) -> None:
        """Write ``values`` and read the watched keys, soon. A newer value overtakes one not written yet."""
        with self._lock:
            self._outgoing.update(values)
        self._wake.set()

    def newest(self) -> dict[str, Any]:
        """The watched keys as they were read last; keys not read yet are missing."""
        with self._lock:
            return dict(self._incoming)

    @property
    def round_ms_mean(self) -> float:
        """What one round of reading and writing takes on average, in milliseconds; it delays no control step."""
        return 1000 * self._rounds_s / max(self._rounds, 1)

    def close(self, timeout_s: float = 10.0) -> None:
        """Write what is left and end the thread."""
        self._closed.set()
        self._wake.set()
        self._thread.join(timeout_s)

    def _work(self) -> None:
        while not self._closed.is_set():
            self._wake.wait()
            self._wake.clear()
            began_s = time.monotonic()
            self._round()
            took_s = time.monotonic() - began_s
            self._rounds, self._rounds_s = self._rounds + 1, self._rounds_s + took_s
            self._closed.wait(self._every_s - took_s)
        if self._outgoing:  # posted while the last round was under way
            self._round()

    def _round(self) -> None:
        with self._lock:
            outgoing, self._outgoing = self._outgoing, {}
        try:
            for key in list(outgoing):
                self._state.set(key, outgoing[key])
                del outgoing[key]
            read = {key: self._state.get(key) for key in self._watch}
        except Exception as error:  # whatever the store raises: control must not stop for it
            with self._lock:
                self._outgoing = {**outgoing, **self._outgoing}
            if isinstance(error, (EOFError, ConnectionError)):  # what cannot be reached over a network is another error
                self.cut_off = True
            elif not self._troubled:
                self._troubled = True
                self._on_trouble(error)
            return
        with self._lock:
            self._incoming = read
        if self._troubled:
            self._troubled = False
            self._on_trouble(None)
