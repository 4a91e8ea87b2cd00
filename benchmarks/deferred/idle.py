"""Training code that uses hardly any CPU time, and does not end by itself."""

import time

from paceline.train import track

for _ in track(range(1_000_000)):
    time.sleep(0.5)
