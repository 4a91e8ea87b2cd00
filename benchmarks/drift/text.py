"""Free text: false alarms, and detected changes of the topic in real tweets, reviews and editorials."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
import time
import zipfile
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.drift.environments import FOLDER
from paceline.drift import compare

# This source distribution contains the texts of C. J. Hutto and E. Gilbert, "VADER", ICWSM 2014.
SOURCE = "vaderSentiment==0.5"
_FILE = "hutto_ICWSM_2014/{}_GroundTruth.txt"
# Name, the texts of both windows, the texts that replace a part of the current window, that part, and rows.
CHANGES: tuple[tuple[str, str, str, float, int], ...] = (
    ("none, tweets", "tweets", "tweets", 0.0, 500),
    ("none, films", "movieReviewSnippets", "movieReviewSnippets", 0.0, 2000),
    ("10 % products", "movieReviewSnippets", "amazonReviewSnippets", 0.1, 500),
    ("20 % products", "movieReviewSnippets", "amazonReviewSnippets", 0.2, 500),
    ("50 % products", "movieReviewSnippets", "amazonReviewSnippets", 0.5, 500),
    ("20 % products", "movieReviewSnippets", "amazonReviewSnippets", 0.2, 5000),
)


def read_texts(names: set[str]) -> dict[str, np.ndarray]:
    """Return the texts by the name of their file. Download them if needed; raise RuntimeError if pip fails."""
    if not (archives := list(FOLDER.glob("vaderSentiment-*.zip"))):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(FOLDER), SOURCE]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"pip could not download {SOURCE}: {done.stderr.strip()[-2000:]}")
        archives = list(FOLDER.glob("vaderSentiment-*.zip"))
    with zipfile.ZipFile(archives[0]) as outer:
        [inner] = [name for name in outer.namelist() if name.endswith(".tar.gz")]
        with tarfile.open(fileobj=io.BytesIO(outer.read(inner))) as texts:
            return {name: _read(texts, name) for name in names}


def _read(archive: tarfile.TarFile, name: str) -> np.ndarray:
    file = archive.extractfile(_FILE.format(name))
    assert file is not None
    lines = file.read().decode(errors="replace").splitlines()
    return np.array([fields[2] for line in lines if len(fields := line.split("\t", 2)) == 3], dtype=object)


def text_rates(windows: int) -> list[dict[str, Any]]:
    """Return the share of pairs of windows in which each change is reported as drift, and the CPU seconds of a pair."""
    texts = read_texts({name for _, *names, _, _ in CHANGES for name in names})
    results = []
    for name, usual, new, share, rows in CHANGES:
        rng = np.random.default_rng(9)
        drifted, replaced, started = 0, round(share * rows), time.process_time()
        for _ in range(windows):
            drawn = rng.permutation(texts[usual])[: 2 * rows]
            current = np.concatenate([drawn[rows : 2 * rows - replaced], rng.permutation(texts[new])[:replaced]])
            report = compare(pd.DataFrame({"text": drawn[:rows]}), pd.DataFrame({"text": current}))
            drifted += report.drifted
        seconds = (time.process_time() - started) / windows
        results.append({"change": name, "rows": rows, "drift": drifted / windows, "cpu_s": seconds})
    return results


def print_texts(results: list[dict[str, Any]]) -> None:
    """Print the result of ``text_rates``."""
    for result in results:
        change, rows = result["change"], result["rows"]
        print(f"  {change:<13} {rows:>5,} rows: {result['drift']:6.1%}   {result['cpu_s']:.1f} s of CPU time")
