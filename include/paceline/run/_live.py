"""The live state of a running job: commands from users or an arbiter, and samples from the control loop.

In Airflow, the live state is the task state store; elsewhere, it is a dictionary.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from pydantic_core import from_json, to_json

from paceline.contract import CEILING, DEADLINE

_FINAL_RETRY_S = (0.0, 0.2, 1.0, 3.0)  # delays before the attempts to write the remaining values at the end


class LiveState(Protocol):
    """Keys and JSON values that outlive the process; users and arbiters read and write them while the job runs."""

    def get(self, key: str) -> Any:
        """Return the value of a key; ``None`` if the key is missing."""

    def set(self, key: str, value: Any) -> None:
        """Write a value."""

    def delete(self, key: str) -> None:
        """Delete a key; a missing key is not an error."""


class MemoryState(dict[str, Any]):
    """A live state in a dictionary, for tests and for use outside Airflow.

    >>> state = MemoryState(deadline="20m")
    >>> state.set("ceiling", 1.5)
    >>> state.get("deadline"), state.get("ceiling"), state.get("pace")
    ('20m', 1.5, None)
    """

    def set(self, key: str, value: Any) -> None:
        """Write a value."""
        self[key] = value

    def delete(self, key: str) -> None:
        """Delete a key."""
        self.pop(key, None)


class JsonText(str):
    """The JSON text of a value, for ``LiveValues.post``: of a large value, whose text is made faster than the value."""

    __slots__ = ()

    @classmethod
    def values_of(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return ``values`` with the value of each text.

        >>> JsonText.values_of({"history": JsonText('{"count":1}'), "deadline": "20m"})
        {'history': {'count': 1}, 'deadline': '20m'}
        """
        return {key: from_json(value) if isinstance(value, cls) else value for key, value in values.items()}


class LiveValues:
    """The values that a control loop writes to its live state, and the newest ones in it.

    The loop calls ``post`` and ``newest``, which never wait. Whoever transfers the values, in another thread, calls
    ``take`` and then ``succeed`` or ``fail``.

    >>> values = LiveValues()
    >>> values.post({"pace": 1})
    >>> values.take()
    {'pace': 1}
    >>> values.fail()
    >>> values.post({"pace": 2})
    >>> values.take()
    {'pace': 2}
    >>> values.succeed({"deadline": "20m"})
    >>> values.newest(), values.close()
    ({'deadline': '20m'}, {})
    """

    def __init__(self) -> None:
        self._outgoing: dict[str, Any] = {}
        self._writing: dict[str, Any] = {}
        self._incoming: dict[str, Any] = {}
        self._lock = threading.Lock()
        self.disconnected = self.failing = False

    def post(self, values: Mapping[str, Any]) -> None:
        """Write ``values`` soon. A newer value replaces an unwritten value of the same key."""
        with self._lock:
            self._outgoing.update(values)

    def newest(self) -> dict[str, Any]:
        """Return the newest values of the watched keys; a key is missing until it is read."""
        with self._lock:
            return dict(self._incoming)

    def take(self) -> dict[str, Any]:
        """Return the values to write now."""
        with self._lock:
            self._writing, self._outgoing = self._outgoing, {}
            return dict(self._writing)

    def succeed(self, read: Mapping[str, Any] | None = None) -> None:
        """Note that the taken values are written, and the values that were read with them."""
        with self._lock:
            self._writing, self.failing = {}, False
            if read is not None:
                self._incoming = dict(read)

    def fail(self) -> None:
        """Note that the taken values have to be written again."""
        with self._lock:
            self._outgoing, self._writing, self.failing = {**self._writing, **self._outgoing}, {}, True

    @property
    def round_ms_mean(self) -> float:
        """Mean duration of a transfer, in milliseconds; 0 if it is not measured."""
        return 0.0

    def close(self, timeout_s: float = 10.0) -> dict[str, Any]:
        """End the exchange; return the values that are not written."""
        with self._lock:
            return {**self._writing, **self._outgoing}


class RemoteState(LiveValues):
    """A live state that another process stores, as the control loop of this process sees it.

    It is read once, at the start. Later, ``newest`` returns what is transferred. All that is transferred are JSON
    texts, which the threads of the job make and read: an event loop that transfers them for a thousand jobs only passes
    them on.

    >>> state = RemoteState({"deadline": '"20m"'})
    >>> state.set("container", "a")
    >>> state.get("deadline"), state.get("container"), state.take()
    ('20m', 'a', {'container': '"a"'})
    >>> [state.receive({"deadline": text}) for text in ('"20m"', '"20m"', '"30m"')], state.newest()
    ([False, False, True], {'deadline': '30m'})
    """

    def __init__(self, stored: Mapping[str, str | None]) -> None:
        super().__init__()
        self._stored = dict(stored)
        self._read: Mapping[str, str | None] | None = None

    def post(self, values: Mapping[str, Any]) -> None:
        """Write ``values`` soon, as texts; ``None`` deletes a key."""
        super().post({key: _text(value) for key, value in values.items()})

    def receive(self, read: Mapping[str, str | None]) -> bool:
        """Note the texts that were read; return whether one has changed since the last time."""
        before, self._read = self._read, read
        if read == before:
            return False
        values = {key: _value(text) for key, text in read.items()}
        with self._lock:
            self._incoming = values
        return before is not None

    def get(self, key: str) -> Any:
        """Return the value of a key; ``None`` if the key is missing."""
        return _value(self._stored.get(key))

    def set(self, key: str, value: Any) -> None:
        """Write a value."""
        self._stored[key] = _text(value)
        self.post({key: value})

    def delete(self, key: str) -> None:
        """Write ``None``, which readers treat as a missing key."""
        self.set(key, None)


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, JsonText):
        return value
    return to_json(value, inf_nan_mode="null").decode()


def _value(text: str | None) -> Any:
    """Return the value of a stored text, which any user may have written; ``None`` if it cannot be read."""
    try:
        return None if text is None else from_json(text, allow_inf_nan=False)
    except ValueError:
        return None


class Exchange(LiveValues):
    """Exchanges live state with a slow store in a thread, so that no control step waits for the store.

    A round writes the posted values and reads the watched keys. Each call to ``post`` requests a round, but at most one
    round starts per ``every_s`` seconds. A failed round is repeated at the next post, while control continues. If the
    connection to the store is permanently closed because the task has lost its supervisor, ``disconnected`` is true.

    Parameters
    ----------
    state:
        The store.
    watch:
        Keys to read in every round.
    on_failure:
        Called with the error of the first failed round, and with ``None`` once a round succeeds again.
    every_s:
        Minimum time between the starts of two rounds. The store may share cores with the job, so frequent rounds
        would slow the job down.
    """

    def __init__(
        self,
        state: LiveState,
        watch: tuple[str, ...] = (DEADLINE, CEILING),
        on_failure: Callable[[Exception | None], None] = lambda error: None,
        every_s: float = 1.0,
    ) -> None:
        super().__init__()
        self._state = state
        self._watch = watch
        self._on_failure = on_failure
        self._every_s = every_s
        self._wake = threading.Event()
        self._closed, self._abandoned = threading.Event(), threading.Event()
        self._rounds, self._rounds_s = 0, 0.0
        self._thread = threading.Thread(target=self._run_rounds, name="paceline-live-state", daemon=True)
        self._thread.start()

    def post(self, values: Mapping[str, Any]) -> None:
        """Schedule a round that writes ``values``. A newer value replaces an unwritten value of the same key."""
        super().post(values)
        self._wake.set()

    @property
    def round_ms_mean(self) -> float:
        """Mean duration of a round in milliseconds; rounds do not delay control steps."""
        return 1000 * self._rounds_s / max(self._rounds, 1)

    def close(self, timeout_s: float = 10.0) -> dict[str, Any]:
        """Write the remaining values and end the thread; return the values that it could not write in time."""
        self._closed.set()
        self._wake.set()
        self._thread.join(timeout_s)
        self._abandoned.set()
        return JsonText.values_of(super().close())

    def _run_rounds(self) -> None:
        while not self._closed.is_set():
            self._wake.wait()
            self._wake.clear()
            began_s = time.monotonic()
            self._run_round()
            took_s = time.monotonic() - began_s
            self._rounds, self._rounds_s = self._rounds + 1, self._rounds_s + took_s
            self._closed.wait(self._every_s - took_s)
        for delay_s in _FINAL_RETRY_S:  # write values that the last round missed or failed to write
            if not self._outgoing or self.disconnected or self._abandoned.wait(delay_s):
                return
            self._run_round()

    def _run_round(self) -> None:
        try:
            for key, value in JsonText.values_of(self.take()).items():
                if self._abandoned.is_set():
                    return
                self._state.set(key, value)
                with self._lock:
                    del self._writing[key]
            read = {key: self._state.get(key) for key in self._watch}
        except Exception as error:  # the store may raise any exception; control continues
            is_first = not self.failing
            self.fail()
            if isinstance(error, (EOFError, ConnectionError)):  # an unreachable API server causes a different error
                self.disconnected = True
            elif is_first:
                self._on_failure(error)
            return
        was_failing = self.failing
        self.succeed(read)
        if was_failing:
            self._on_failure(None)
