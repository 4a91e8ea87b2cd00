"""The jobs of ``paceline simulate --from-airflow``: the past trainings of an Airflow, with their learned speeds."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any

from paceline.airflow._clean import seconds_of
from paceline.contract import PaceSample, TrainingResult
from paceline.control import PastRun
from paceline.errors import InvalidInputError

if TYPE_CHECKING:
    from paceline.simulate.past import PastJob

CORES, DEVICES = "cores", "devices"
_MAX_JOBS = 5000


def options() -> argparse.ArgumentParser:
    """Return the parent parser with the options that select past trainings."""
    parser = argparse.ArgumentParser(add_help=False)
    group = parser.add_argument_group("past trainings")
    group.add_argument(
        "--from-airflow",
        action="store_true",
        help="instead of TRACE: simulate the trainings that have succeeded in this Airflow",
    )
    group.add_argument(
        "--last",
        type=seconds_of,
        default=7 * 86_400.0,
        metavar="TIME",
        help="trainings that have ended in this time, such as 12h or 30d (default: 7d)",
    )
    group.add_argument("--pool", metavar="NAME", help="only trainings of this Airflow pool")
    group.add_argument(
        "--unit",
        choices=(CORES, DEVICES),
        default=CORES,
        help="trainings whose allocation is a number of CPU cores, or one of GPUs or other whole devices (%(default)s)",
    )
    return parser


def read_past_jobs(args: argparse.Namespace, connect: Callable[[argparse.Namespace], Any]) -> list[PastJob]:
    """Return the past trainings that the options select, in order of arrival; report those that are left out."""
    from paceline.simulate.past import from_first_arrival

    pool = {} if args.pool is None else {"pool": args.pool}
    found = connect(args).pages("/jobs/results", days=args.last / 86_400, limit=_MAX_JOBS, **pool)
    jobs, left_out = [], Counter[str]()
    for one in found["trainings"]:
        result, pace = TrainingResult.read(one["result"]), PaceSample.read(one["pace"])
        unit = CORES if pace is None or pace.unit == CORES else DEVICES
        job = None if result is None or pace is None else _past_job(one, result, pace)
        if unit != args.unit:
            left_out[f"allocated {unit}, see --unit"] += 1
        elif job is None:
            left_out["their speed was not learned, because they were too short or had another controller"] += 1
        else:
            jobs.append(job)
    for reason, number in left_out.items():
        print(f"paceline: left out {number} of {len(found['trainings'])} trainings: {reason}", file=sys.stderr)
    if found["older"]:
        print(f"paceline: read only the newest {_MAX_JOBS} trainings: shorten --last", file=sys.stderr)
    if not jobs:
        accepted = f"an Airflow in which trainings on {args.unit} have succeeded in the time of --last"
        raise InvalidInputError("--from-airflow", args.url, accepted)
    return from_first_arrival(jobs)


def _past_job(one: dict[str, Any], result: TrainingResult, pace: PaceSample) -> PastJob | None:
    from paceline.simulate.past import PastJob

    past = PastRun.read(result.learned)
    remaining = None if past is None else past.remaining()
    if remaining is None or remaining.work_s <= 0:
        return None
    origin_s = result.origin.timestamp()
    started_s = datetime.fromisoformat(one["started_at"].replace("Z", "+00:00")).timestamp()
    if pace.began_s > 0:  # the last try may have started long after the job
        started_s = min(started_s, origin_s + pace.began_s)
    task = one["task_id"] if one["map_index"] < 0 else f"{one['task_id']}[{one['map_index']}]"
    return PastJob(
        name=f"{one['dag_id']} {one['run_id']} {task}",
        arrives_s=started_s,
        deadline_s=None if result.deadline_s is None else origin_s + result.deadline_s,
        work_s=round(remaining.work_s, 3),
        exponent=remaining.exponent,
        fixed_s=remaining.after_s,
        usable_devices=remaining.usable_devices,
        min_devices=max(pace.min_devices, pace.quantum),
        max_devices=pace.max_devices,
        quantum=pace.quantum,
        priority_weight=one["priority_weight"] or 1,
    )
