"""A training script without torch, in batches of 0.01 s of CPU time: ``python endless.py BATCHES``.

The script ends early when the test opens the gate ``finish``, see ``gates.py``. Its checkpoint is the number of
completed batches. The script uses its whole allocation, so its speed is soon known, even on a tenth of a core.
"""

import os
import signal
import sys
import time
from pathlib import Path

from paceline.train.progress import Progress

signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
total = int(sys.argv[1])
saved = Path(os.environ["PACELINE_CHECKPOINT"], "done")
done = int(saved.read_text()) if saved.exists() else 0


def report(event: str) -> None:
    now = Progress(done, total, event=event, monotonic_s=time.monotonic(), wall_s=time.time())
    print(now.to_line(), flush=True)


report("start")
while done < total:
    until_s = time.process_time() + 0.01
    while time.process_time() < until_s:
        pass
    done += 1
    saved.with_suffix(".new").write_text(str(done))
    saved.with_suffix(".new").replace(saved)  # replacing a file is atomic
    if Path("finish").exists():
        total = done
    report("progress")
report("finish")
Path(os.environ["PACELINE_OUTPUT"], "model.txt").write_text(str(done))
