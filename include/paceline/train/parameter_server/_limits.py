"""Limits of what a peer may send: lengths and counts are checked before memory is allocated for them.

Used by all processes of a training job. No torch, because ``peer`` is imported without it.
"""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from paceline.train._values import bad_value, whole_number

# A request of a worker has one number for each reported metric, and its vector is not part of the message.
MAX_REQUEST_BYTES = 1 << 20
# An answer of the server has the indices of a batch: ten million samples are shorter.
MAX_ANSWER_BYTES = 1 << 27
MAX_EPOCHS = 1 << 53  # exact in every JSON reader
_MAX_SAMPLES = 1 << 28  # of an epoch
MAX_PROCESSES = 256  # that share the state, and workers that have sent a change to one of them
_MAX_METRICS = 10_000
_MAX_NAME_LENGTH = 253  # that of a host name
# The state, a worker's change and the copy that is sent back are in memory at the same time.
_STATES_IN_MEMORY = 2
# The order of the samples as a vector, as a list of objects and in two queues.
_BYTES_PER_SAMPLE = 64
_BYTES = {"float32": 4, "float64": 8}
_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


@cache
def memory_bytes() -> int:
    """Return the memory of this container, or of the machine if there is no limit."""
    available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for path in _CGROUP_LIMITS:
        with suppress(OSError, ValueError):  # no such version of control groups, or the limit "max"
            available = min(available, int(Path(path).read_text()))
    return available


def max_state_size(dtype: str) -> int:
    """Return how many numbers of ``dtype`` a state may have in the memory of this process."""
    return memory_bytes() // (_STATES_IN_MEMORY * _BYTES[dtype])


def max_samples() -> int:
    """Return how many samples an epoch may have in the memory of this process."""
    return min(_MAX_SAMPLES, memory_bytes() // _BYTES_PER_SAMPLE)


def count(field: str, value: object, most: int, least: int = 0) -> int:
    """Return ``value`` if it is a whole number from ``least`` to ``most``, else raise ``ValueError``.

    >>> count("port", 1 << 16, 65535)
    Traceback (most recent call last):
    ValueError: port: got 65536, expected at most 65535
    """
    number = whole_number(field, value, least)
    if number > most:
        raise bad_value(field, number, f"at most {most}")
    return number


def number_type(value: object) -> str:
    """Return ``value`` if it is the name of a type of numbers that a state may have, else raise ``ValueError``."""
    if not isinstance(value, str) or value not in _BYTES:
        raise bad_value("dtype", value, " or ".join(_BYTES))
    return value


def printable_name(field: str, value: object) -> str:
    """Return ``value`` if it is a printable name, which may be part of a log line, else raise ``ValueError``."""
    if not isinstance(value, str) or not value.isprintable() or len(value) > _MAX_NAME_LENGTH:
        raise bad_value(field, value, f"at most {_MAX_NAME_LENGTH} printable characters")
    return value


def metrics(value: Any, known: dict[str, float]) -> dict[str, float]:
    """Return the reported metrics ``value`` as numbers; raise ``ValueError`` if there are too many with the ``known``.

    >>> metrics({"loss": 1}, {})
    {'loss': 1.0}
    """
    with suppress(AttributeError, TypeError, ValueError, OverflowError):
        numbers = {key: float(number) for key, number in value.items()}
        if len(known | numbers) <= _MAX_METRICS:
            return numbers
    raise ValueError(f"reported: expected at most {_MAX_METRICS} metrics, each a number")
