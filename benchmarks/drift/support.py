"""How often realised errors are within the intervals of estimates, also where the inputs leave the reference."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.drift.environments import read_result, run_adapter
from benchmarks.drift.estimators import DATA_SETS, ESTIMATORS, INTERVALS

ROWS = 500
# Rows of a window. NannyML's windows of employment have 20,889 rows.
_MOST_ROWS = 5_000


def measure_coverage(windows: int, weather: Path | None) -> list[dict[str, Any]]:
    """Return for each data set and tool the numbers of windows, of covered ones, and of those with a warning.

    ``missed`` are windows whose realised error is outside the interval although nothing warned. ``windows`` is the
    number of simulated windows.
    """
    results = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for data, kind in _write_data_sets(folder, windows, weather):
            for tool in INTERVALS:
                found = read_result(tool, run_adapter(tool, "intervals", folder / data, tool, kind))
                covered = [abs(realised - error) <= width for realised, error, width, _ in found]
                warned = [bool(one[3]) for one in found]
                results.append(
                    {
                        "data": data,
                        "tool": tool,
                        "windows": len(found),
                        "covered": sum(covered),
                        "warned": sum(warned),
                        "missed": sum(not (inside or told) for inside, told in zip(covered, warned, strict=True)),
                        "realised": [one[0] for one in found],
                        "estimates": [one[1] for one in found],
                        "widths": [one[2] for one in found],
                    }
                )
    return results


def print_coverage(results: Sequence[dict[str, Any]]) -> None:
    """Print the result of ``measure_coverage``."""
    print(f"  {'data':<22} windows  within  warning  outside without a warning")
    for row in results:
        print(
            f"  {row['data']:<22} {row['windows']:>7} {row['covered']:>7} {row['warned']:>8} {row['missed']:>11}"
            f"  {ESTIMATORS[row['tool']][0]}"
        )


def _write_data_sets(folder: Path, windows: int, weather: Path | None) -> Iterator[tuple[str, str]]:
    """Write each data set into a folder of its own; yield its name and the kind of error."""
    read_result("nannyml", run_adapter("nannyml", "export", folder))
    for name, (kinds, *_) in DATA_SETS.items():
        current = pd.read_parquet(folder / name / "current.parquet")
        numbers = np.arange(len(current)) // (len(current) // 10)
        current = current.assign(window=numbers)[numbers < 10].groupby("window").head(_MOST_ROWS)
        current.to_parquet(folder / name / "current.parquet")
        yield name, kinds[0]
    sources: dict[str, Callable[[], tuple[pd.DataFrame, pd.DataFrame]]] = {"flights by week": _flights}
    if weather is not None:
        sources["weather by year"] = lambda: _weather(weather)
    for number, (name, shift) in enumerate({"simulated, no change": 0.0, "simulated, outside": 8.0}.items()):
        sources[name] = lambda number=number, shift=shift: _simulate(number, windows, shift)
    for name, read in sources.items():
        reference, current = read()
        (folder / name).mkdir()
        reference.to_parquet(folder / name / "reference.parquet")
        current.to_parquet(folder / name / "current.parquet")
        yield name, "wrong"


def _flights() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return March and April, and the weeks of later months. The model learns from January and February.

    It predicts from what is known before the departure. The share of late flights depends on the day.
    """
    from demo.store import read_flights

    table = read_flights(tuple(range(1, 13)))
    features = ["weekday", "carrier", "origin", "dest", "dep_hour", "distance"]
    flights = table[features].assign(actual=table["late"], time=table["day"], month=table["window"])
    flights = _with_predictions(flights, (flights["month"] <= "2013-02").to_numpy(), features)
    week = flights["month"] + (pd.to_datetime(flights["time"]).dt.day.clip(upper=28) - 1).floordiv(7).astype(str)
    is_reference = flights["month"].isin(["2013-03", "2013-04"])
    reference = flights[is_reference]
    later = flights["month"] > "2013-04"
    current = flights[later].assign(window=pd.factorize(week[later])[0])
    return reference.drop(columns="month"), current.drop(columns="month")


def _weather(path: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return eight years, and each later year. The model learns from the four years before."""
    records = pd.read_csv(path).rename(columns={"target": "actual"})
    features = [name for name in records if name != "actual"]
    numbers = np.arange(len(records))
    records = _with_predictions(records, numbers < 4 * 365, features).assign(time=numbers)
    later = (numbers >= 12 * 365) & (numbers < len(records) // 365 * 365)
    current = records[later].assign(window=numbers[later] // 365)
    return records[4 * 365 : 12 * 365], current


def _with_predictions(frame: pd.DataFrame, learned: np.ndarray[Any, Any], features: list[str]) -> pd.DataFrame:
    from sklearn.ensemble import HistGradientBoostingClassifier  # type: ignore[import-untyped,unused-ignore]

    inputs = frame[features].apply(lambda column: column if column.dtype.kind in "if" else pd.factorize(column)[0])
    model = HistGradientBoostingClassifier(max_iter=60, random_state=0).fit(inputs[learned], frame["actual"][learned])
    return frame.assign(prediction=model.predict_proba(inputs)[:, 1])


def _simulate(seed: int, windows: int, shift: float) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return a reference of 5,000 rows and windows. A feature shifts, and beyond 4 the scores mean nothing."""
    rng = np.random.default_rng(seed)

    def make(n: int, shift: float) -> pd.DataFrame:
        x, other = rng.normal(size=n), rng.normal(shift, 1, n)
        chance = np.where(other > 4, 0.5, 1 / (1 + np.exp(-2 * x)))
        truth = (rng.random(n) < chance).astype(int)
        return pd.DataFrame({"x": x, "other": other, "prediction": 1 / (1 + np.exp(-3 * x)), "actual": truth})

    current = make(windows * ROWS, shift).assign(window=np.repeat(np.arange(windows), ROWS))
    return make(5_000, 0.0), current
