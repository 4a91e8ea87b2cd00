"""Counts repeated lines of hold-out data: a sign that rows depend on each other. Called by ``EvaluateOperator``."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from pathlib import Path

_TEXT = {".csv", ".jsonl", ".ndjson", ".tsv", ".txt"}
_MAX_LINES = 1_000_000  # the hashes of as many lines need about 100 MB


def repeated_lines(paths: Iterable[Path]) -> int:
    """Return how many lines of text files equal an earlier line of their file; 0 if fewer than 1 % do.

    Only the first million lines of a file count. ``paths`` are files and folders.
    """
    repeated = lines = 0
    for path in paths:
        for file in path.rglob("*") if path.is_dir() else [path]:
            if file.suffix.lower() in _TEXT and file.is_file():
                with file.open("rb") as text:
                    hashes = [hash(line.strip()) for line in islice(text, _MAX_LINES)]
                lines += len(hashes)
                repeated += len(hashes) - len(set(hashes))
    return repeated if 100 * repeated >= lines else 0
