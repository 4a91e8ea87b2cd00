"""Real streams of errors: data sets that packages ship, and models that learn from their first rows."""

from __future__ import annotations

import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmarks.drift import environments

# The last version whose source distribution has data sets.
SOURCE = "scikit-multiflow==0.4.1"
# File in the package, rows to learn from, rows of the reference, rows of a window.
SETS = {
    "Elec2": ("elec.csv", 2688, 2688, 1344),  # four weeks in a window
    "weather": ("weather.csv", 730, 730, 365),  # a year in a window
    "SEA": ("sea_stream.csv", 2500, 2500, 1000),
    "forest cover": ("covtype.csv", 5000, 5000, 2500),
}
MOST_WINDOWS = 50


@dataclass(frozen=True)
class ErrorWindows:
    """Right (0) and wrong (1) predictions of a model in its reference and in the windows after it."""

    name: str
    reference: NDArray[np.float64]
    windows: list[NDArray[np.float64]]


def read_sets(weather: Path | None = None) -> Iterator[ErrorWindows]:
    """Yield the errors of each data set, and those of Elec2 in random order, in which nothing drifts.

    ``weather`` is another file of the weather records.
    """
    folder = _download()
    for name, (file, learned, rows, size) in SETS.items():
        data = pd.read_csv(weather if weather is not None and name == "weather" else folder / file)
        yield _predict(name, data, learned, rows, size)
        if name == "Elec2":
            shuffled = data.sample(frac=1.0, random_state=0)
            yield _predict(f"{name}, mixed", shuffled, learned, rows, size)


def _predict(name: str, data: pd.DataFrame, learned: int, rows: int, size: int) -> ErrorWindows:
    from sklearn.ensemble import HistGradientBoostingClassifier  # type: ignore[import-untyped,unused-ignore]

    data = data[: learned + rows + MOST_WINDOWS * size]
    features, labels = data.iloc[:, :-1].to_numpy(), data.iloc[:, -1].to_numpy()
    model = HistGradientBoostingClassifier(random_state=0).fit(features[:learned], labels[:learned])
    errors = (model.predict(features[learned:]) != labels[learned:]).astype(float)
    starts = range(rows, len(errors) - size + 1, size)[:MOST_WINDOWS]
    return ErrorWindows(name, errors[:rows], [errors[start : start + size] for start in starts])


def _download() -> Path:
    """Download the source distribution, which is not installed, and return the folder of its data sets."""
    environments.install("data")
    folder = environments.FOLDER / "data" / "sets"
    if not folder.exists():
        options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-binary", ":all:", "--dest", str(folder)]
        subprocess.run([environments.python("data"), "-m", "pip", "download", *options, SOURCE], check=True)
    archive = next(folder.glob("*.tar.gz"))
    with tarfile.open(archive) as files:
        for member in files.getmembers():
            if Path(member.name).name in {file for file, *_ in SETS.values()}:
                member.name = Path(member.name).name
                files.extract(member, folder, filter="data")
    return folder
