"""Virtual environments for the tools that the benchmark compares with Paceline, one per tool in ``build/drift``.

The tools need different versions of pandas and NumPy from Paceline's. ``benchmarks.drift.adapter`` runs in them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).parents[2]
FOLDER = PROJECT / "build" / "drift"
# Evidently and NannyML accept pandas 3, but cannot be imported with it. NannyML does not declare statsmodels.
REQUIREMENTS = {
    "evidently": ("evidently==0.7.23", "pandas==2.3.3", "numpy==2.4.6", "scipy==1.17.1", "pyarrow==26.0.1"),
    "nannyml": (
        "nannyml==0.13.1",
        "pandas==2.3.3",
        "numpy==2.4.6",
        "scipy==1.17.1",
        "pyarrow==26.0.1",
        "statsmodels==0.15.0",
    ),
    "alibi-detect": ("alibi-detect==0.13.0", "pandas==2.3.3", "numpy==1.26.4", "scipy==1.17.1", "pyarrow==20.0.0"),
    # What the source distribution of scikit-multiflow needs so that pip can download it.
    "data": ("numpy==1.26.4", "setuptools==69.5.1", "wheel==0.45.1"),
    "river": ("river==0.26.1", "pandas==2.3.3", "numpy==2.4.6", "scipy==1.17.1"),
}
PACELINE = "paceline"  # the environment of the benchmark itself
# Evidently and NannyML send usage statistics to their vendors unless these variables are set.
_NO_REPORTS = {"DO_NOT_TRACK": "1", "NML_DISABLE_USAGE_LOGGING": "1"}


def install(name: str) -> None:
    """Create the environment ``name``, unless it exists with the pinned versions. Raise RuntimeError if pip fails."""
    folder, wanted = FOLDER / name, "\n".join(REQUIREMENTS[name])
    stamp = folder / "requirements.txt"
    if stamp.exists() and stamp.read_text() == wanted:
        return
    print(f"Installing {REQUIREMENTS[name][0]} into {folder} (a few minutes)", flush=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
    command = [python(name), "-m", "pip", "--disable-pip-version-check", "install", "--quiet", *REQUIREMENTS[name]]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(
            f"{name}: pip could not install {' '.join(REQUIREMENTS[name])} with Python {sys.version.split()[0]} "
            f"(NannyML and alibi-detect need 3.10 to 3.12): {done.stderr.strip()[-2000:]}"
        )
    stamp.write_text(wanted)


def python(name: str) -> str:
    """Return the path of the Python of an environment."""
    return sys.executable if name == PACELINE else str(FOLDER / name / "bin" / "python")


def run_adapter(name: str, *arguments: object, timeout_s: float | None = None) -> subprocess.CompletedProcess[str]:
    """Run ``benchmarks.drift.adapter`` in an environment. Raise subprocess.TimeoutExpired after ``timeout_s``."""
    return subprocess.run(
        [python(name), "-W", "ignore", "-m", "benchmarks.drift.adapter", *map(str, arguments)],
        cwd=PROJECT,
        env=os.environ | _NO_REPORTS,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )


def read_result(tool: str, done: subprocess.CompletedProcess[str]) -> Any:
    """Return the result of an adapter. Raise RuntimeError if it failed."""
    if done.returncode:
        raise RuntimeError(f"{tool}: the adapter failed with {done.returncode}: {done.stderr.strip()[-2000:]}")
    return json.loads(done.stdout.rstrip().rpartition("\n")[2])
