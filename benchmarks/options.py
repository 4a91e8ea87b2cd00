"""Argparse types for the benchmarks' options, which reject an invalid value before the first measurement."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

Number = TypeVar("Number", int, float)


def between(least: Number, most: Number) -> Callable[[str], Number]:
    """Return a parser of numbers from ``least`` to ``most``; it accepts only integers if both limits are integers.

    >>> between(1, 9)("9"), between(0.5, 9.0)("0.5")
    (9, 0.5)
    >>> between(0.5, 9.0)("nan")
    Traceback (most recent call last):
    argparse.ArgumentTypeError: got 'nan', expected a number from 0.5 to 9
    """
    kind = type(least)

    def read(text: str) -> Number:
        with contextlib.suppress(ValueError):
            value = kind(text)
            if least <= value <= most:  # also rejects nan
                return value
        whole = "whole " if kind is int else ""
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a {whole}number from {least:g} to {most:g}")

    return read


def writable(text: str) -> Path:
    """Return ``text`` as a path if the file can be written; do not change its content.

    Opening the file is the only reliable check: root has all permissions, but cannot write to a read-only disk.
    """
    path, existed = Path(text), os.path.lexists(text)
    try:
        path.open("a").close()
        if not existed:
            path.unlink()
    except OSError as error:
        accepted = f"a file that can be written, in a folder that exists ({error.strerror})"
        raise argparse.ArgumentTypeError(f"got {text!r}, expected {accepted}") from None
    return path
