"""Measures every figure that the guides promise: ``python -m benchmarks.promises [--quick] [--json FILE]``.

For each promise it prints the target, the figure, the verdict, and the state of the machine before and after. Promises
may be missed on shared or busy machines, so the exit code is 0 in any case (``--strict``: 1 if a promise is missed or
nothing is measured). Like the tests, containers need an engine and the trainer image. An interrupted run resumes; its
results count only for the same commit, image and length of the training jobs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from demo.signals import end_on_sigterm
from demo.story import IMAGE, lock_folder

from benchmarks.options import between, writable
from benchmarks.promises import computing, devices, fleet, machine, pages, shares, sharing, training
from benchmarks.promises.catalogue import ELSEWHERE, PROMISES
from benchmarks.promises.registry import MEASUREMENTS, MISSED, NOT_MEASURED, Measurement, Reading
from benchmarks.promises.report import Row, collect_rows, table, to_json
from benchmarks.promises.results import Results, commit
from benchmarks.promises.stage import NotMeasuredError, Stage, find_image, missing_reason, time_limit
from paceline.errors import PacelineError

# Order of the measurements: the main promise is first; measurements without Airflow and engine are last.
_AREAS = (training, shares, devices, pages, sharing, fleet, computing)
_LIMIT_S = {True: 600.0, False: 2400.0}  # time limit of a run; the key is --quick
_SHUTDOWN_S = 15.0  # time to stop Airflow and to print
_SHORTEST_S = {True: 24.0, False: 40.0}
_MIN_SHORTEST_S = 10.0  # shorter jobs consist mostly of their start and end


def ordered_measurements() -> list[Measurement]:
    """Return all measurements in the order in which a run makes them."""
    areas = [area.__name__ for area in _AREAS]
    return sorted(MEASUREMENTS, key=lambda one: areas.index(one.run.__module__))


def measurements_by_promise() -> dict[str, list[str]]:
    """Return the names of the measurements of each promise."""
    return {promise: [one.name for one in ordered_measurements() if promise in one.promises] for promise in PROMISES}


class Run:
    """A run of some measurements, which stores each result immediately."""

    def __init__(self, stage: Stage, results: Results, limit_s: float) -> None:
        self._stage, self._results, self._limit_s = stage, results, limit_s
        self._began_s = time.monotonic()
        self.skip_reasons: dict[str, str] = {}

    def elapsed(self) -> str:
        """Return the time since the start in minutes and seconds, such as ``4:07``."""
        minutes, seconds = divmod(int(time.monotonic() - self._began_s), 60)
        return f"{minutes}:{seconds:02}"

    def measure(self, one: Measurement) -> None:
        """Make a measurement and store its result, or the reason for a missing result."""
        reason = self._skip_reason(one)
        if reason:
            self._record_skip(one, reason)
            return
        if one.run.__module__ == computing.__name__:
            self._stage.stop_airflow()
        readings: list[dict[str, Any]] = []
        before = machine.measure()
        try:
            with time_limit(self._left_s(), f"the limit of {self._limit_s / 60:g} minutes was reached"):
                for reading in one.run(self._stage):
                    readings.append(reading.to_dict())
                    self._log(reading)
        except Exception as error:  # a failed measurement must not prevent the others
            self._record_skip(
                one, f"{type(error).__name__}: {error}" if not isinstance(error, NotMeasuredError) else str(error)
            )
            self._stage.remove_leftovers()
            return
        after = machine.measure()
        result = {"readings": readings, "before": before.to_dict(), "after": after.to_dict()}
        self._results.add(one.name, result)

    def _skip_reason(self, one: Measurement) -> str:
        takes_s = one.takes_s[1 if self._stage.quick else 0]
        if takes_s is None:
            return "--quick omits this measurement"
        if takes_s > self._left_s():
            left_s = max(self._left_s(), 0.0)
            return f"takes {takes_s:.0f} s, and only {left_s:.0f} s of {self._limit_s / 60:g} minutes are left"
        return next(filter(None, (missing_reason(need, self._stage.image) for need in one.needs)), "")

    def _left_s(self) -> float:
        return self._limit_s - _SHUTDOWN_S - (time.monotonic() - self._began_s)

    def _record_skip(self, one: Measurement, reason: str) -> None:
        self.skip_reasons[one.name] = reason
        self._stage.log(f"{', '.join(one.promises)}: not measured: {reason}")

    def _log(self, reading: Reading) -> None:
        target = PROMISES[reading.promise].target
        outcome = "does not count" if reading.excused else "met" if target.is_met_by(reading.value) else MISSED
        of = f" ({reading.of})" if reading.of else ""
        self._stage.log(f"  {reading.promise}: {reading.value:.4g}{of}, {target}: {outcome}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark, print its table and write the figures as JSON."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if unknown := set(options.only or ()) - set(PROMISES):
        parser.error(f"--only: got {', '.join(map(repr, sorted(unknown)))}, expected ids from --list")
    names = list(dict.fromkeys(options.only or PROMISES))
    if options.list:
        print(_promise_list())
        return 0
    measurements = [one for one in ordered_measurements() if set(one.promises) & set(names)]
    limit_s = 60 * options.minutes if options.minutes else _LIMIT_S[options.quick]
    _check_combination(parser, options, measurements, limit_s)
    image_id, no_image_reason = find_image(options.image)
    if no_image_reason and options.image != IMAGE:
        parser.error(f"--image: got {options.image!r}, expected an image of the engine ({no_image_reason})")
    about = {
        "quick": options.quick,
        "shortest_s": options.shortest_s or _SHORTEST_S[options.quick],
        "cores": machine.cores(),
        "image": image_id[:19],  # "sha256:" and the digits that `docker images` shows
        "commit": commit(),
    }
    end_on_sigterm()
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(lock_folder(options.folder))
            results = Results(options.folder / ("quick" if options.quick else "whole"), about)
        except OSError as error:
            parser.error(f"--folder: got '{options.folder}', expected a folder that can be written ({error.strerror})")
        except PacelineError:
            parser.error(f"--folder: got '{options.folder}', expected a folder that no other run uses")
        rows = _run_measurements(options, measurements, results, limit_s, about)
    if rows is None:
        return 130
    failure = _strict_failure(rows, names)
    if options.strict and failure:
        print(f"--strict: {failure}", file=sys.stderr)
    return int(options.strict and bool(failure))


def _check_combination(
    parser: argparse.ArgumentParser, options: argparse.Namespace, measurements: Sequence[Measurement], limit_s: float
) -> None:
    """Reject combinations of valid options that leave nothing to measure."""
    if options.quick and all(one.takes_s[1] is None for one in measurements):
        parser.error(f"--only: got {' '.join(options.only)}, expected an id that --quick does not omit")
    most_s = (limit_s - _SHUTDOWN_S) / training.D_C / (1 if options.quick else training.RUNS)
    if options.shortest_s and options.shortest_s > most_s:
        fits = f"at most {most_s:.0f}: its jobs have to end within the {limit_s / 60:g} minutes of this run"
        parser.error(f"--shortest-s: got {options.shortest_s:g}, expected {fits}")


def _run_measurements(
    options: argparse.Namespace,
    measurements: Sequence[Measurement],
    results: Results,
    limit_s: float,
    about: Mapping[str, Any],
) -> list[Row] | None:
    """Make all measurements that have no stored result, print the table and write it; return None if interrupted."""
    promise_ids = [name for name in PROMISES if any(name in one.promises for one in measurements)]
    stage = Stage(options.folder, quick=options.quick, shortest_s=about["shortest_s"], image=options.image)
    run = Run(stage, results, limit_s)
    stage.log = lambda text: print(f"{run.elapsed():>5}  {text}", flush=True)

    def write_results(path: Path) -> tuple[list[Row], float]:
        stored = {one.name: results[one.name] for one in measurements if one.name in results}
        best = max((result[when]["speed"] for result in stored.values() for when in ("before", "after")), default=1.0)
        rows = collect_rows(
            [PROMISES[name] for name in promise_ids], measurements_by_promise(), stored, run.skip_reasons
        )
        path.write_text(json.dumps(to_json(rows, best, **about), indent=1) + "\n")
        return rows, best

    newest = options.folder / "results.json"
    try:
        with contextlib.closing(stage):
            stage.prepare()
            for number, one in enumerate(measurements, start=1):
                print(f"{run.elapsed():>5}  [{number} of {len(measurements)}] {', '.join(one.promises)}", flush=True)
                if one.name in results:
                    stage.log("already measured before the interruption")
                    continue
                if difference := results.difference(one.name):
                    stage.log(f"measured again: the stored result is for {difference}")
                run.measure(one)
                write_results(newest)
    except (KeyboardInterrupt, SystemExit) as interruption:
        stage.log("interrupted; the same command resumes the run")
        if isinstance(interruption, SystemExit):
            raise
        return None
    rows, best = write_results(newest)
    print(table(rows, best))
    if options.json:
        try:
            options.json.write_text(newest.read_text())
        except OSError as error:  # the file was writable at the start
            sys.exit(f"--json: {options.json} can no longer be written ({error.strerror}); the results are in {newest}")
    for one in measurements:
        results.forget(one.name)  # the next run measures everything again
    return rows


def _strict_failure(rows: Sequence[Row], names: Sequence[str]) -> str:
    """Return why a strict run fails: missed promises, or no measurement of a requested promise. "" if it passes."""
    if missed := [row.promise.id for row in rows if row.verdict == MISSED]:
        return f"missed: {', '.join(missed)}"
    measured = any(row.verdict != NOT_MEASURED for row in rows if row.promise.id in names)
    return "" if measured else f"no measurement of {', '.join(names)}"


def _promise_list() -> str:
    lines = []
    for promise in PROMISES.values():
        lines.append(
            f"{promise.id:17} {promise.target!s:21} {promise.sentence}" + f" [{promise.place}]" * bool(promise.place)
        )
    lines.append("\nFigures of the guides that have their own benchmark:")
    lines += [f"  python -m {command:22} {figure}" for figure, command in ELSEWHERE.items()]
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.promises", description=__doc__)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="take fewer and shorter measurements (at most ten minutes instead of forty)",
    )
    parser.add_argument(
        "--only", nargs="+", metavar="ID", help="measure only these promises, and promises that are measured with them"
    )
    parser.add_argument("--list", action="store_true", help="print all promises with their places in the guides")
    parser.add_argument(
        "--strict", action="store_true", help="exit with 1 if a promise is missed or nothing is measured"
    )
    parser.add_argument(
        "--shortest-s",
        type=between(_MIN_SHORTEST_S, 3600.0),
        default=None,
        help="seconds of a training job on all cores (40; quick: 24)",
    )
    parser.add_argument(
        "--minutes",
        type=between(_SHUTDOWN_S / 60, 1440.0),
        default=None,
        help="time limit of the run in minutes (40; quick: 10)",
    )
    parser.add_argument("--image", default=IMAGE, help="image with Python and torch")
    parser.add_argument(
        "--folder", type=Path, default=Path("build/promises"), help="folder of stored results and scratch files"
    )
    parser.add_argument("--json", type=writable, default=None, metavar="FILE")
    return parser


if __name__ == "__main__":
    sys.exit(main())
