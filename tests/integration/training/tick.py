"""An application beside a training: it says ten times a second that an execution took a quarter of a second."""

import time

from paceline.train import report

while True:
    report(execution_s=0.25)
    time.sleep(0.1)
