"""The CSV file of past trainings is read as it was written, and an invalid cell is named."""

from dataclasses import replace
from pathlib import Path

import pytest

from paceline.errors import InvalidInputError
from paceline.simulate.past import PastJob, common_unit, has_past_jobs, read_jobs, write_jobs

FIRST = PastJob("a", 10.0, 610.0, 400.0, 1.0, 20.0, 1.5, 0.1, 2.0, 0.05, 1)
SECOND = PastJob("b", 0.0, None, 100.0, 0.9, 0.0, None, 1.0, 4.0, 1.0, 7)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write_jobs([FIRST, SECOND], tmp_path / "jobs.csv")
    return tmp_path / "jobs.csv"


def test_jobs_are_read_as_written_in_order_of_arrival(file: Path) -> None:
    assert has_past_jobs(file)
    assert read_jobs(file) == [SECOND, FIRST]


def quote_header(text: str) -> str:
    header, rest = text.split("\n", 1)
    return ",".join(f'"{name}"' for name in header.rstrip("\r").split(",")) + "\n" + rest


@pytest.mark.parametrize(
    "save",
    [lambda text: f"\N{BYTE ORDER MARK}{text}", quote_header, lambda text: text.replace(",", ", ")],
    ids=["byte order mark", "quoted names", "spaces"],
)
def test_file_that_a_spreadsheet_has_saved_is_read(file: Path, save) -> None:
    file.write_text(save(file.read_text(encoding="utf-8")), encoding="utf-8")
    assert has_past_jobs(file)
    assert read_jobs(file) == [SECOND, FIRST]


def test_job_that_more_devices_do_not_make_faster_is_read(file: Path) -> None:
    write_jobs([replace(FIRST, exponent=0.0)], file)
    (job,) = read_jobs(file)
    speeds = job.to_arrival(pool=4, unit=0.05).speeds["device"]
    assert set(speeds.per_s) == {1.0}


def test_file_with_semicolons_is_rejected(file: Path) -> None:
    file.write_text(file.read_text().replace(",", ";"))
    assert has_past_jobs(file)
    with pytest.raises(InvalidInputError, match=r"jobs.csv, columns: got .*, expected columns separated by commas"):
        read_jobs(file)


def test_job_is_as_fast_as_in_its_training_and_not_faster_on_more_than_it_can_use() -> None:
    speeds = FIRST.to_arrival(pool=4, unit=0.05).speeds["device"]
    assert (speeds.counts[0], speeds.counts[-1]) == (2, 40)
    assert [420 / speeds.at(count) for count in (20, 40)] == pytest.approx([420, 400 / 1.5 + 20])
    assert FIRST.to_arrival(pool=1, unit=0.05).speeds["device"].counts[-1] == 20, "not more than the pool has"


@pytest.mark.parametrize(
    ("quanta", "pool", "unit", "counts"),
    [
        ((0.25, 0.1), 2, 0.05, [(5, 10, 15, 20), (2, 4, 6, 8, 10, 12, 14, 16, 18, 20)]),
        ((1.0, 0.3), 1, 0.1, [(10,), (3, 6, 9)]),
        ((4.0, 6.0), 12, 2.0, [(2, 4, 6), (3, 6)]),
    ],
)
def test_each_job_gets_all_multiples_of_its_quantum(quanta, pool, unit, counts) -> None:
    most = max(1.0, *quanta) if pool < 12 else 12.0
    jobs = [replace(FIRST, min_devices=one, max_devices=most, quantum=one) for one in quanta]
    assert common_unit(jobs, pool) == unit
    assert [job.to_arrival(pool, unit).speeds["device"].counts for job in jobs] == counts


@pytest.mark.parametrize(
    ("limits", "pool", "message"),
    [
        ((2.0, 1.0), 4, "a, min_devices and max_devices: got '2 and 1', expected a multiple of the quantum 0.05"),
        ((0.12, 0.13), 4, "a, min_devices and max_devices: got '0.12 and 0.13', expected a multiple of the quantum"),
        ((2.0, 3.0), 1, "--nodes: got 1, expected at least 2, the smallest allocation of the job a"),
    ],
)
def test_limits_without_an_allocation_are_told_from_a_pool_that_is_too_small(limits, pool, message) -> None:
    job = replace(FIRST, min_devices=limits[0], max_devices=limits[1])
    with pytest.raises(InvalidInputError, match=message):
        job.to_arrival(pool, unit=0.05)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("a,10.0", "b,10.0", "jobs.csv line 3, name: got 'b', expected a unique name"),
        ("400.0", "much", "line 2, work_s: got 'much', expected a number above 0"),
        ("400.0", "0", "line 2, work_s: got '0', expected a number above 0"),
        ("610.0", "soon", "line 2, deadline_s: got 'soon', expected a number, or nothing"),
        ("20.0", "-1", "line 2, fixed_s: got '-1', expected 0 or more"),
        ("400.0,1.0", "400.0,-1", "line 2, exponent: got '-1', expected 0 or more"),
        ("10.0", "nan", "line 2, arrives_s: got 'nan', expected a number"),
        ("quantum", "step", "columns: got .*, expected also quantum"),
        ("a,", "\N{LATIN SMALL LETTER E WITH ACUTE},", "expected a readable CSV file"),
    ],
)
def test_unusable_cell_is_named(file: Path, before: str, after: str, message: str) -> None:
    file.write_text(file.read_text().replace(before, after), encoding="latin-1")
    with pytest.raises(InvalidInputError, match=message):
        read_jobs(file)


def test_file_without_jobs_is_rejected(file: Path) -> None:
    write_jobs([], file)
    with pytest.raises(InvalidInputError, match=r"TRACE: got .*, expected at least one job"):
        read_jobs(file)
