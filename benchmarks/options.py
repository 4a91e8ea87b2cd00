"""What the options of benchmarks accept. As argparse types, they refuse a bad value before anything is measured."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

Number = TypeVar("Number", int, float)


def between(least: Number, most: Number) -> Callable[[str], Number]:
    """Accept a number from ``least`` to ``most``, a whole one if these are.

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
            if least <= value <= most:  # not true of nan
                return value
        whole = "whole " if kind is int else ""
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a {whole}number from {least:g} to {most:g}")

    return read


def writable(text: str) -> Path:
    """Accept a file that can be written; what is in it stays until then.

    Opening the file is the only certain test: root may write everywhere, but not on a read-only disk.
    """
    path, was_there = Path(text), os.path.lexists(text)
    try:
        path.open("a").close()
        if not was_there:
            path.unlink()
    except OSError as error:
        accepted = f"a file that can be written, in a folder that exists ({error.strerror})"
        raise argparse.ArgumentTypeError(f"got {text!r}, expected {accepted}") from None
    return path
