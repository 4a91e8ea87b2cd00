"""Three CPU minutes of work in equal batches, which end early when a file appears: ``steady.py FILE``."""

import sys
import time
from pathlib import Path

from paceline.train import report, stop_early, track

enough = Path(sys.argv[1])
for number in track(range(6000)):
    until_s = time.thread_time() + 0.03
    while time.thread_time() < until_s:
        pass
    report(loss=1 / (1 + number))
    if enough.exists():
        stop_early()
