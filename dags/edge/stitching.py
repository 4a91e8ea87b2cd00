"""The training job's neighbour: computes SIFT features of a frame every 200 ms, as in Deep-Edge. Runs in a container.

The frames are synthetic: rectangles and circles in random greys on noise, 640 x 320 pixels as in the paper.
"""

import time

import cv2
import numpy as np

from paceline.train import report

PERIOD_S = 0.2
WIDTH, HEIGHT = 640, 320

cv2.setNumThreads(1)
rng = np.random.default_rng(0)
frames = []
for _ in range(16):
    frame = rng.integers(0, 5, (HEIGHT, WIDTH), dtype=np.uint8)
    for _ in range(20):
        x, y, size = (int(rng.integers(0, end)) for end in (WIDTH, HEIGHT, 60))
        grey = int(rng.integers(40, 255))
        cv2.rectangle(frame, (x, y), (x + size, y + size), grey, -1)
        cv2.circle(frame, (WIDTH - x, y), size // 2, 255 - grey, -1)
    frames.append(frame)

sift = cv2.SIFT_create()
next_s = time.monotonic()
number = 0
while True:
    started_s = time.monotonic()
    sift.detectAndCompute(frames[number % len(frames)], None)
    report(execution_s=time.monotonic() - started_s)
    number += 1
    next_s = max(next_s + PERIOD_S, time.monotonic())
    time.sleep(max(next_s - time.monotonic(), 0.0))
