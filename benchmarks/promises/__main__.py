"""Run it as ``python -m benchmarks.promises [--quick] [--json FILE]``; an interrupted run resumes.

Measures every promise of the guides that has a number, and prints target, figure, verdict, and the state of the machine
before and after. Shared or busy machines miss promises, so the exit code is 0 in any case (``--strict``: 1 if a promise
is missed or nothing is measured). Containers need an engine and the trainer image, like the tests. Results of an
interrupted run count only for the same commit, image and length of trainings.
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

from benchmarks.options import between, writable
from benchmarks.promises import computing, devices, fleet, machine, pages, shares, sharing, training
from benchmarks.promises.catalogue import ELSEWHERE, PROMISES
from benchmarks.promises.registry import MEASUREMENTS, MISSED, NOT_MEASURED, Measurement, Reading
from benchmarks.promises.report import Row, rows, table, to_json
from benchmarks.promises.results import Results, commit
from benchmarks.promises.stage import NotMeasuredError, Stage, at_most_s, find_image, missing
from paceline.airflow.demo.signals import end_on_sigterm
from paceline.airflow.demo.story import IMAGE, lock_folder
from paceline.errors import PacelineError

# Order of the measurements: the main promise first, and last those that need neither Airflow nor an engine.
_AREAS = (training, shares, devices, pages, sharing, fleet, computing)
_LIMIT_S = {True: 600.0, False: 2400.0}  # of a run, by --quick
_END_S = 15.0  # to stop Airflow and print
_SHORTEST_S = {True: 24.0, False: 40.0}
_LEAST_SHORTEST_S = 10.0  # shorter trainings consist mostly of their start and end


def ordered() -> list[Measurement]:
    """Return all measurements in the order of the run."""
    areas = [area.__name__ for area in _AREAS]
    return sorted(MEASUREMENTS, key=lambda one: areas.index(one.run.__module__))


def measured_by() -> dict[str, list[str]]:
    """Return the names of each promise's measurements."""
    return {promise: [one.name for one in ordered() if promise in one.promises] for promise in PROMISES}


class Run:
    """One run over some measurements; each result is stored at once."""

    def __init__(self, stage: Stage, results: Results, limit_s: float) -> None:
        self._stage, self._results, self._limit_s = stage, results, limit_s
        self._began_s = time.monotonic()
        self.skip_reasons: dict[str, str] = {}

    def elapsed(self) -> str:
        """Return the time since the start in minutes and seconds, as ``4:07``."""
        minutes, seconds = divmod(int(time.monotonic() - self._began_s), 60)
        return f"{minutes}:{seconds:02}"

    def measure(self, one: Measurement) -> None:
        """Make a measurement and store its result, or the reason why there is none."""
        reason = self._skip_reason(one)
        if reason:
            self._skip(one, reason)
            return
        if one.run.__module__ == computing.__name__:
            self._stage.stop_airflow()
        readings: list[dict[str, Any]] = []
        before = machine.measure()
        try:
            with at_most_s(self._left_s(), f"the limit of {self._limit_s / 60:g} minutes was reached"):
                for reading in one.run(self._stage):
                    readings.append(reading.to_dict())
                    self._log(reading)
        except Exception as error:  # a failed measurement must not prevent the others
            self._skip(
                one, f"{type(error).__name__}: {error}" if not isinstance(error, NotMeasuredError) else str(error)
            )
            self._stage.tidy()
            return
        after = machine.measure()
        result = {"readings": readings, "before": before.to_dict(), "after": after.to_dict()}
        self._results.add(one.name, result)

    def _skip_reason(self, one: Measurement) -> str:
        takes_s = one.takes_s[1 if self._stage.quick else 0]
        if takes_s is None:
            return "--quick omits it"
        if takes_s > self._left_s():
            left_s = max(self._left_s(), 0.0)
            return f"it takes {takes_s:.0f} s, and {left_s:.0f} s of {self._limit_s / 60:g} minutes are left"
        return next(filter(None, (missing(need, self._stage.image) for need in one.needs)), "")

    def _left_s(self) -> float:
        return self._limit_s - _END_S - (time.monotonic() - self._began_s)

    def _skip(self, one: Measurement, reason: str) -> None:
        self.skip_reasons[one.name] = reason
        self._stage.log(f"{', '.join(one.promises)}: not measured: {reason}")

    def _log(self, reading: Reading) -> None:
        target = PROMISES[reading.promise].target
        outcome = "does not count" if reading.excused else "met" if target.is_met_by(reading.value) else MISSED
        of = f" ({reading.of})" if reading.of else ""
        self._stage.log(f"  {reading.promise}: {reading.value:.4g}{of}, {target}: {outcome}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table and write it."""
    parser = _parser()
    chosen = parser.parse_args(arguments)
    if unknown := set(chosen.only or ()) - set(PROMISES):
        parser.error(f"--only: got {', '.join(map(repr, sorted(unknown)))}, expected ids from --list")
    names = list(dict.fromkeys(chosen.only or PROMISES))
    if chosen.list:
        print(_listing())
        return 0
    wanted = [one for one in ordered() if set(one.promises) & set(names)]
    limit_s = 60 * chosen.minutes if chosen.minutes else _LIMIT_S[chosen.quick]
    _check_together(parser, chosen, wanted, limit_s)
    image_id, no_image_reason = find_image(chosen.image)
    if no_image_reason and chosen.image != IMAGE:
        parser.error(f"--image: got {chosen.image!r}, expected an image of the engine ({no_image_reason})")
    about = {
        "quick": chosen.quick,
        "shortest_s": chosen.shortest_s or _SHORTEST_S[chosen.quick],
        "cores": machine.cores(),
        "image": image_id[:19],  # sha256: and the digits that `docker images` shows
        "commit": commit(),
    }
    end_on_sigterm()
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(lock_folder(chosen.folder))
            results = Results(chosen.folder / ("quick" if chosen.quick else "whole"), about)
        except OSError as error:
            parser.error(f"--folder: got '{chosen.folder}', expected a folder that can be written ({error.strerror})")
        except PacelineError:
            parser.error(f"--folder: got '{chosen.folder}', expected a folder that no other run uses")
        found = _measured(chosen, wanted, results, limit_s, about)
    if found is None:
        return 130
    failure = _failure(found, names)
    if chosen.strict and failure:
        print(f"--strict: {failure}", file=sys.stderr)
    return int(chosen.strict and bool(failure))


def _check_together(
    parser: argparse.ArgumentParser, chosen: argparse.Namespace, wanted: Sequence[Measurement], limit_s: float
) -> None:
    """Reject combinations of valid options that leave nothing to measure."""
    if chosen.quick and all(one.takes_s[1] is None for one in wanted):
        parser.error(f"--only: got {' '.join(chosen.only)}, expected an id that --quick does not omit")
    most_s = (limit_s - _END_S) / training.D_C / (1 if chosen.quick else training.RUNS)
    if chosen.shortest_s and chosen.shortest_s > most_s:
        fits = f"at most {most_s:.0f}: its trainings have to end in the {limit_s / 60:g} minutes of this run"
        parser.error(f"--shortest-s: got {chosen.shortest_s:g}, expected {fits}")


def _measured(
    chosen: argparse.Namespace,
    wanted: Sequence[Measurement],
    results: Results,
    limit_s: float,
    about: Mapping[str, Any],
) -> list[Row] | None:
    """Make the measurements without a stored result, print the table and write it; None if interrupted."""
    shown = [name for name in PROMISES if any(name in one.promises for one in wanted)]
    stage = Stage(chosen.folder, quick=chosen.quick, shortest_s=about["shortest_s"], image=chosen.image)
    run = Run(stage, results, limit_s)
    stage.log = lambda text: print(f"{run.elapsed():>5}  {text}", flush=True)

    def written(path: Path) -> tuple[list[Row], float]:
        kept = {one.name: results[one.name] for one in wanted if one.name in results}
        best = max((result[when]["speed"] for result in kept.values() for when in ("before", "after")), default=1.0)
        found = rows([PROMISES[name] for name in shown], measured_by(), kept, run.skip_reasons)
        path.write_text(json.dumps(to_json(found, best, **about), indent=1) + "\n")
        return found, best

    newest = chosen.folder / "results.json"
    try:
        with contextlib.closing(stage):
            stage.begin()
            for number, one in enumerate(wanted, start=1):
                print(f"{run.elapsed():>5}  [{number} of {len(wanted)}] {', '.join(one.promises)}", flush=True)
                if one.name in results:
                    stage.log("measured before the interruption")
                    continue
                if difference := results.difference(one.name):
                    stage.log(f"measured again: the stored result is of {difference}")
                run.measure(one)
                written(newest)
    except (KeyboardInterrupt, SystemExit) as interruption:
        stage.log("interrupted; the same command resumes the run")
        if isinstance(interruption, SystemExit):
            raise
        return None
    found, best = written(newest)
    print(table(found, best))
    if chosen.json:
        try:
            chosen.json.write_text(newest.read_text())
        except OSError as error:  # it was writable at the start
            sys.exit(f"--json: {chosen.json} can no longer be written ({error.strerror}); the results are in {newest}")
    for one in wanted:
        results.forget(one.name)  # the next run measures everything again
    return found


def _failure(found: Sequence[Row], names: Sequence[str]) -> str:
    """Return which promises are missed, or that no requested one was measured; "" if neither."""
    if missed := [row.promise.id for row in found if row.verdict == MISSED]:
        return f"missed: {', '.join(missed)}"
    measured = any(row.verdict != NOT_MEASURED for row in found if row.promise.id in names)
    return "" if measured else f"nothing was measured of {', '.join(names)}"


def _listing() -> str:
    lines = []
    for promise in PROMISES.values():
        lines.append(
            f"{promise.id:17} {promise.target!s:21} {promise.sentence}" + f" [{promise.place}]" * bool(promise.place)
        )
    lines.append("\nFigures of the guides with their own benchmark:")
    lines += [f"  python -m {command:22} {figure}" for figure, command in ELSEWHERE.items()]
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.promises", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="fewer and shorter measurements: at most ten minutes instead of forty"
    )
    parser.add_argument("--only", nargs="+", metavar="ID", help="these promises, and those measured with them")
    parser.add_argument("--list", action="store_true", help="print all promises and the places that make them")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a promise is missed, or nothing measured")
    parser.add_argument(
        "--shortest-s",
        type=between(_LEAST_SHORTEST_S, 3600.0),
        default=None,
        help="shortest time of a training (40; quick: 24)",
    )
    parser.add_argument(
        "--minutes",
        type=between(_END_S / 60, 1440.0),
        default=None,
        help="time limit of the run (40; quick: 10)",
    )
    parser.add_argument("--image", default=IMAGE, help="image with Python and torch")
    parser.add_argument("--folder", type=Path, default=Path("build/promises"), help="stored results and scratch files")
    parser.add_argument("--json", type=writable, default=None, metavar="FILE")
    return parser


if __name__ == "__main__":
    sys.exit(main())
