"""A background application that reports an execution time of 0.25 s ten times a second."""

import time

from paceline.train import report

while True:
    report(execution_s=0.25)
    time.sleep(0.1)
