"""A background application that reports an execution of a quarter of a second ten times a second."""

import time

from paceline.train import report

while True:
    report(execution_s=0.25)
    time.sleep(0.1)
