"""Reads published traces of training jobs, and tables of measured throughput.

The file formats are those of the ElasticFlow and Pollux artifacts, which are not part of this project.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import isfinite, nan
from pathlib import Path

from paceline.allocate import DEVICE, Speeds
from paceline.errors import InvalidInputError
from paceline.simulate.cluster._workload import Arrival

# Alternative names of each column; traces use different names.
_COLUMNS = {
    "submission_time": ("submission_time", "submit_time"),
    "num_iteration": ("num_iteration", "real_iteration"),
    "deadline": ("deadline", "ddl"),
    "model_name": ("model_name",),
    "batch_size": ("batch_size",),
    "num_gpu": ("num_gpu",),
}
# Device hours of each application, which Pollux traces do not contain: the middle of the application's class in Pollux
# (small, medium, large, extra large).
POLLUX_DEVICE_HOURS = {"cifar10": 0.5, "ncf": 0.5, "bert": 5.0, "deepspeech2": 5.0, "yolov3": 50.0, "imagenet": 250.0}


def read_throughputs(folder: Path) -> dict[tuple[str, int], Speeds]:
    """Read iterations per second for each model and global batch size, from one ``MODEL.csv`` for each model.

    Rows are batch sizes, columns are numbers of devices; a cell is empty if the speed could not be measured.
    """
    tables: dict[tuple[str, int], Speeds] = {}
    files = sorted(folder.glob("*.csv"))
    if not files:
        raise InvalidInputError("throughputs", str(folder), "a folder with a file MODEL.csv for each model")
    for file in files:
        for row in _read_rows("throughputs", file):
            batch = row.pop("global_batch_size", None)
            if batch is None:
                raise InvalidInputError(f"{file.name}", list(row), "a column global_batch_size")
            try:
                size = int(batch)
                measured = {int(count): float(cell) for count, cell in row.items() if cell and float(cell) > 0}
            except (TypeError, ValueError):
                accepted = "columns named by a number of devices, with numbers as cells"
                raise InvalidInputError(f"{file.name}, batch size {batch}", row, accepted) from None
            if (file.stem, size) in tables:
                raise InvalidInputError(f"{file.name}, batch size", batch, "one row for each batch size")
            if measured:
                counts = tuple(sorted(measured))
                tables[file.stem, size] = Speeds(counts, tuple(measured[count] for count in counts))
    return tables


def read_trace(file: Path, tables: Mapping[tuple[str, int], Speeds], *, jobs: int | None = None) -> Iterator[Arrival]:
    """Yield the jobs of a trace in order of arrival; the first job arrives at 0 s.

    Parameters
    ----------
    file:
        A trace with deadlines (ElasticFlow), of which some may be empty, or without (Pollux).
    tables:
        Speeds of the models in the trace, see :func:`read_throughputs`.
    jobs:
        Number of jobs to read; by default all.
    """
    rows = _read_rows("trace", file)
    if not rows:
        raise InvalidInputError("trace", str(file), "at least one job")
    to_arrival = _pollux_arrival if "application" in rows[0] else _elasticflow_arrival
    arrivals = sorted(
        (to_arrival(number, row, tables, file.name) for number, row in enumerate(rows)), key=lambda one: one.arrives_s
    )
    first_s = arrivals[0].arrives_s
    for one in arrivals[:jobs]:
        yield shifted_arrival(one, -first_s)


def _read_rows(field: str, file: Path) -> list[dict[str, str]]:
    try:
        with file.open(newline="", encoding="utf-8-sig") as stream:
            return list(csv.DictReader(stream))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidInputError(field, str(file), f"a readable CSV file ({error})") from None


def resample(trace: Sequence[Arrival], jobs: int, seed: int) -> Iterator[Arrival]:
    """Yield a workload of any length; its jobs, and the gaps between arrivals, are drawn at random from a trace.

    Examples
    --------
    >>> from paceline.allocate import Speeds
    >>> trace = [Arrival(f"{n}", 60.0 * n, 10.0, {DEVICE: Speeds.linear(2)}, deadline_s=60.0 * n + 9) for n in range(3)]
    >>> [(one.name, one.arrives_s, one.deadline_s) for one in resample(trace, 3, seed=0)]
    [('0', 0.0, 9.0), ('1', 60.0, 69.0), ('2', 120.0, 129.0)]
    """
    if len(trace) < 2:
        raise InvalidInputError("trace", len(trace), "2 jobs or more")
    draw = random.Random(seed)  # noqa: S311 - a workload, not a secret
    gaps_s = [later.arrives_s - one.arrives_s for one, later in pairwise(trace)]
    now_s = 0.0
    for number in range(jobs):
        one = draw.choice(trace)
        yield replace(shifted_arrival(one, now_s - one.arrives_s), name=f"{number}")
        now_s += draw.choice(gaps_s)


def shifted_arrival(one: Arrival, by_s: float) -> Arrival:
    """Return a job that arrives, and is due, ``by_s`` seconds later."""
    deadline_s = None if one.deadline_s is None else one.deadline_s + by_s
    return replace(one, arrives_s=one.arrives_s + by_s, deadline_s=deadline_s)


def _elasticflow_arrival(
    index: int, row: Mapping[str, str], tables: Mapping[tuple[str, int], Speeds], file: str
) -> Arrival:
    line = f"{file} line {index + 2}"

    def cell_number(name: str) -> float:
        return _cell_number(row, name, line)

    speeds = _measured_speeds(tables, _cell_text(row, "model_name", line), _cell_count(row, "batch_size", line), line)
    return Arrival(
        name=str(index),
        arrives_s=cell_number("submission_time"),
        work=_cell_positive(row, "num_iteration", line),
        speeds={DEVICE: speeds},
        deadline_s=None if _has_empty_deadline(row) else cell_number("deadline"),
        requested=_cell_count(row, "num_gpu", line),
    )


def _has_empty_deadline(row: Mapping[str, str]) -> bool:
    """Return whether a job has no deadline. A missing column is an error, because its name may be misspelled."""
    return any(row.get(column) == "" for column in _COLUMNS["deadline"])


def _pollux_arrival(index: int, row: Mapping[str, str], tables: Mapping[tuple[str, int], Speeds], file: str) -> Arrival:
    line = f"{file} line {index + 2}"
    application = row["application"]
    if application not in POLLUX_DEVICE_HOURS:
        raise InvalidInputError(f"{line}, application", application, f"one of {sorted(POLLUX_DEVICE_HOURS)}")
    speeds = _measured_speeds(tables, application, _cell_count(row, "batch_size", line), line)
    return Arrival(
        name=_cell_text(row, "name", line),
        arrives_s=_cell_number(row, "time", line),
        work=3600 * POLLUX_DEVICE_HOURS[application] * speeds.per_s[0] / speeds.counts[0],
        speeds={DEVICE: speeds},
        requested=_cell_count(row, "num_replicas", line),
    )


def _cell_text(row: Mapping[str, str], name: str, line: str) -> str:
    columns = _COLUMNS.get(name, (name,))
    for column in columns:
        if row.get(column):
            return row[column]
    raise InvalidInputError(f"{line}, {name}", "", f"a value in a column {' or '.join(columns)}")


def _cell_number(row: Mapping[str, str], name: str, line: str) -> float:
    text = _cell_text(row, name, line)
    try:
        number = float(text)
    except ValueError:
        number = nan
    if not isfinite(number):
        raise InvalidInputError(f"{line}, {name}", text, "a number")
    return number


def _cell_positive(row: Mapping[str, str], name: str, line: str) -> float:
    number = _cell_number(row, name, line)
    if number <= 0:
        raise InvalidInputError(f"{line}, {name}", number, "a number above 0")
    return number


def _cell_count(row: Mapping[str, str], name: str, line: str) -> int:
    number = _cell_number(row, name, line)
    if number < 1 or not number.is_integer():
        raise InvalidInputError(f"{line}, {name}", number, "a whole number, 1 or more")
    return int(number)


def _measured_speeds(tables: Mapping[tuple[str, int], Speeds], model: str, batch: int, line: str) -> Speeds:
    try:
        return tables[model, batch]
    except KeyError:
        known = ", ".join(f"{name} {size}" for name, size in sorted(tables))
        raise InvalidInputError(
            f"{line}, model and batch size", f"{model} {batch}", f"a measured combination: {known}"
        ) from None
