"""Past trainings as a workload: what each took at which allocation, its limits and its deadline, and their CSV file.

``paceline simulate --from-airflow`` makes these jobs from the results of an Airflow.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from fractions import Fraction
from math import gcd, inf, isfinite, lcm, nan
from pathlib import Path

from paceline.allocate import DEVICE, Speeds
from paceline.arbiter import allowed_counts
from paceline.errors import InvalidInputError
from paceline.simulate.cluster import Arrival

_NOT_NEGATIVE = ("exponent", "fixed_s")
_OPTIONAL = ("usable_devices", "deadline_s")
_POSITIVE = ("work_s", "min_devices", "max_devices", "quantum", "usable_devices")


@dataclass(frozen=True)
class PastJob:
    """A past training. A training on n devices takes ``work_s / n**exponent + fixed_s`` seconds.

    Parameters
    ----------
    name:
        Unique name of the job.
    arrives_s:
        Arrival, in seconds on any clock.
    deadline_s:
        Deadline, in seconds on the same clock; ``None`` without a deadline.
    work_s:
        Seconds on one device, without ``fixed_s``.
    exponent:
        Exponent of the speed-up: 1 for a job that is twice as fast on twice as many devices, 0 if it is not faster.
    fixed_s:
        Seconds that do not depend on the devices: start-up, pauses between epochs, and what comes after the last batch.
    usable_devices:
        Devices above which the job becomes no faster; ``None`` if it can use all.
    min_devices, max_devices, quantum:
        Limits of the job's allocation, and its smallest change.
    priority_weight:
        Weight of the job for policies that use it, such as ``priority``.

    Examples
    --------
    >>> job = PastJob("churn", 0, 600, work_s=400, exponent=1, fixed_s=20, usable_devices=None, min_devices=0.5,
    ...     max_devices=2, quantum=0.5, priority_weight=1)
    >>> arrival = job.to_arrival(pool=4, unit=0.5)
    >>> arrival.speeds["device"].counts, arrival.work / arrival.speeds["device"].at(4)
    ((1, 2, 3, 4), 220.0)
    """

    name: str
    arrives_s: float
    deadline_s: float | None
    work_s: float
    exponent: float
    fixed_s: float
    usable_devices: float | None
    min_devices: float
    max_devices: float
    quantum: float
    priority_weight: float

    def to_arrival(self, pool: float, unit: float) -> Arrival:
        """Return the job as the simulator reads it.

        The work is the time on one device, so the time that does not depend on the devices is spread over the training.

        Parameters
        ----------
        pool, unit:
            Size of the pool, and the smallest change of an allocation in it, in devices.
        """
        counts = allowed_counts(self.min_devices, self.max_devices, self.quantum, int(pool / unit + 1e-6), unit)
        if not counts:
            _check_limits(self, unit)
            accepted = f"at least {self.min_devices:g}, the smallest allocation of the job {self.name}"
            raise InvalidInputError("--nodes", pool, accepted)
        work_s = self.work_s + self.fixed_s

        def speed(devices: float) -> float:
            return float(
                work_s / (self.work_s / min(devices, self.usable_devices or inf) ** self.exponent + self.fixed_s)
            )

        return Arrival(
            name=self.name,
            arrives_s=self.arrives_s,
            work=work_s,
            speeds={DEVICE: Speeds(counts, tuple(speed(count * unit) for count in counts))},
            deadline_s=self.deadline_s,
            weight=self.priority_weight,
        )


COLUMNS = tuple(field.name for field in fields(PastJob))


def _check_limits(job: PastJob, unit: float) -> None:
    """Raise InvalidInputError if no pool is large enough for a job, because no allocation is within its limits."""
    smallest, largest, quantum = job.min_devices, job.max_devices, job.quantum
    if not allowed_counts(smallest, largest, quantum, pool=round(largest / unit) + 1, unit=unit):
        accepted = f"a multiple of the quantum {quantum:g} between them"
        raise InvalidInputError(f"{job.name}, min_devices and max_devices", f"{smallest:g} and {largest:g}", accepted)


def common_unit(jobs: Iterable[PastJob], pool: int) -> float:
    """Return the greatest number of devices of which the pool and the quantum of each job are multiples.

    >>> job = PastJob("churn", 0, 600, work_s=400, exponent=1, fixed_s=20, usable_devices=None, min_devices=0.3,
    ...     max_devices=0.9, quantum=0.3, priority_weight=1)
    >>> common_unit([job], pool=6), common_unit([job], pool=1)
    (0.3, 0.1)
    """
    quanta = [Fraction(str(job.quantum)).limit_denominator(10**6) for job in jobs] + [Fraction(pool)]
    return float(Fraction(gcd(*(one.numerator for one in quanta)), lcm(*(one.denominator for one in quanta))))


def from_first_arrival(jobs: Iterable[PastJob]) -> list[PastJob]:
    """Return the jobs in order of arrival, on the clock that starts with the first arrival."""
    jobs = sorted(jobs, key=lambda job: (job.arrives_s, job.name))
    return [
        replace(
            job,
            arrives_s=round(job.arrives_s - jobs[0].arrives_s, 3),
            deadline_s=None if job.deadline_s is None else round(job.deadline_s - jobs[0].arrives_s, 3),
        )
        for job in jobs
    ]


def write_jobs(jobs: Iterable[PastJob], file: Path) -> None:
    """Write jobs to a CSV file that :func:`read_jobs` reads; an empty cell is ``None``."""
    with file.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, COLUMNS)
        writer.writeheader()
        writer.writerows(asdict(job) for job in jobs)


def has_past_jobs(file: Path) -> bool:
    """Return whether a CSV file has the columns of past jobs, and not those of a published trace."""
    with file.open(newline="", encoding="utf-8-sig", errors="replace") as stream:
        return "work_s" in re.findall(r"\w+", stream.readline())  # with any separator, also if the names are quoted


def read_jobs(file: Path) -> list[PastJob]:
    """Read jobs in order of arrival. Raise InvalidInputError for a missing column, or a cell that is not accepted."""
    try:
        with file.open(newline="", encoding="utf-8-sig") as stream:  # spreadsheets write a byte order mark
            rows = csv.DictReader(stream, skipinitialspace=True)
            names = rows.fieldnames or ()
            if len(names) == 1 and ";" in names[0]:
                raise InvalidInputError(f"{file.name}, columns", names[0], "columns separated by commas")
            if missing := [name for name in COLUMNS if name not in names]:
                raise InvalidInputError(f"{file.name}, columns", names, f"also {', '.join(missing)}")
            jobs = list(_read_rows(file, rows))
    except (UnicodeDecodeError, csv.Error) as error:
        raise InvalidInputError("TRACE", str(file), f"a readable CSV file ({error})") from None
    if not jobs:
        raise InvalidInputError("TRACE", str(file), "at least one job")
    return from_first_arrival(jobs)


def _read_rows(file: Path, rows: Iterable[Mapping[str, str]]) -> Iterator[PastJob]:
    names: set[str] = set()
    for number, row in enumerate(rows, 2):
        line = f"{file.name} line {number}"
        if not row["name"] or row["name"] in names:
            raise InvalidInputError(f"{line}, name", row["name"], "a unique name")
        names.add(row["name"])
        yield PastJob(row["name"], **{name: _read_cell(row, name, line) for name in COLUMNS[1:]})  # type: ignore[arg-type]


def _read_cell(row: Mapping[str, str], name: str, line: str) -> float | None:
    text = row[name]
    if text == "" and name in _OPTIONAL:
        return None
    try:
        value = float(text)
    except (TypeError, ValueError):
        value = nan
    if not isfinite(value) or (name in _POSITIVE and value <= 0) or (name in _NOT_NEGATIVE and value < 0):
        kind = "a number above 0" if name in _POSITIVE else "0 or more" if name in _NOT_NEGATIVE else "a number"
        raise InvalidInputError(f"{line}, {name}", text, f"{kind}, or nothing" if name in _OPTIONAL else kind)
    return value
