"""Reads the records that the supervisor of a pod writes to the pod's log."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from paceline.runtime._lines import LineAssembler

_RECORD = re.compile(rb"(\d+)([.+use])(.*)", re.DOTALL)


@dataclass
class Records:
    """What has been read of the records: each is taken once, also if a new connection repeats it.

    Attributes
    ----------
    number:
        Number of the newest record; 0 before the first.
    usage:
        The newest usage of the container, with the names in ``Usage``; ``None`` before the first.
    run:
        The newest start or end of a run.
    """

    number: int = 0
    usage: dict[str, float] | None = None
    run: dict[str, Any] = field(default_factory=dict)
    _assembler: LineAssembler = field(default_factory=LineAssembler)

    def feed(self, line: bytes) -> list[str]:
        """Read a line of the log without its end, and return the lines of the job that are now complete.

        >>> records = Records()
        >>> [records.feed(line) for line in (b"7+half ", b"8.a line", b"8.a line", b'9e{"code": 0, "usage": {}}')]
        [[], ['half a line'], [], []]
        >>> records.run["code"]
        0
        """
        match = _RECORD.fullmatch(line)
        if match is None or int(match[1]) <= self.number:
            return []
        self.number = int(match[1])
        kind, content = match[2], match[3]
        if kind in b".+":
            return self._assembler.feed(content + (b"\n" if kind == b"." else b""))
        value = json.loads(content)
        if kind == b"u":
            self.usage = value
            return []
        self.run = value
        self.usage = value["usage"] if kind == b"s" else {**value["usage"], "memory_bytes": 0}
        return self._assembler.flush()
