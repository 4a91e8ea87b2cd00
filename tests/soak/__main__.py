"""Repeat the scenarios of this folder: ``python -m tests.soak --minutes 30 [--seed N] [pytest's arguments]``.

The scenarios run in random order until the time is over, even after a failure, see ``conftest.py``.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

import pytest


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument(
        "--minutes",
        type=_parse_minutes,
        default=30.0,
        help="start no scenario after this number of minutes (default: %(default)g)",
    )
    parser.add_argument(
        "--seed", type=int, default=None, help="seed for the order of the scenarios and for their random choices"
    )
    chosen, others = parser.parse_known_args()
    arguments = [str(Path(__file__).parent), f"--minutes={chosen.minutes}"]
    return pytest.main(arguments + ([] if chosen.seed is None else [f"--seed={chosen.seed}"]) + others)


def _parse_minutes(text: str) -> float:
    minutes = float(text)
    if not 0 < minutes < math.inf:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a number of minutes greater than 0")
    return minutes


if __name__ == "__main__":
    sys.exit(main())
