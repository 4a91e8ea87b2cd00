"""Run it as ``python -m benchmarks.promises [--quick] [--json FILE]``; interrupted, it goes on where it was.

Each promise with a number that the guides make is measured on this machine: target, figure, verdict, and how the
machine was before and after. Shared or busy machines miss promises; a figure is a figure, so the exit code is 0 all the
same (``--strict``: 1 if one is missed). Containers need an engine and the trainer image, as the tests do.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.promises import computing, devices, fleet, machine, pages, shares, sharing, training
from benchmarks.promises.catalogue import ELSEWHERE, PROMISES
from benchmarks.promises.registry import MEASUREMENTS, MISSED, Measurement, Reading
from benchmarks.promises.report import rows, table, to_json
from benchmarks.promises.results import Results
from benchmarks.promises.stage import NotMeasuredError, Stage, at_most_s, missing
from paceline.demo.signals import end_on_sigterm

# In this order they are made: the main promise first, and last what needs neither Airflow nor an engine.
_AREAS = (training, shares, devices, pages, sharing, fleet, computing)
_LIMIT_S = {True: 600.0, False: 2400.0}  # of a run: quick, whole
_END_S = 15.0  # to stop Airflow and print
_SHORTEST_S = {True: 24.0, False: 40.0}


def ordered() -> list[Measurement]:
    """All measurements in the order in which they are made."""
    areas = [area.__name__ for area in _AREAS]
    return sorted(MEASUREMENTS, key=lambda one: areas.index(one.run.__module__))


def measured_by() -> dict[str, list[str]]:
    """Promise to the names of its measurements."""
    return {promise: [one.name for one in ordered() if promise in one.promises] for promise in PROMISES}


class Run:
    """One run over some measurements, whose results are kept as they come."""

    def __init__(self, stage: Stage, results: Results, limit_s: float) -> None:
        self._stage, self._results, self._limit_s = stage, results, limit_s
        self._began_s = time.monotonic()
        self.why_not: dict[str, str] = {}

    def elapsed(self) -> str:
        """Minutes and seconds since the beginning, as ``4:07``."""
        minutes, seconds = divmod(int(time.monotonic() - self._began_s), 60)
        return f"{minutes}:{seconds:02}"

    def measure(self, one: Measurement) -> None:
        """Make a measurement and keep its result, or why there is none."""
        why_not = self._why_not(one)
        if why_not:
            self._not(one, why_not)
            return
        if one.run.__module__ == computing.__name__:
            self._stage.rest()
        readings: list[dict[str, Any]] = []
        before = machine.look()
        try:
            with at_most_s(self._left_s(), f"the {self._limit_s / 60:.0f} minutes of this run were over"):
                for reading in one.run(self._stage):
                    readings.append(reading.to_dict())
                    self._tell(reading)
        except Exception as error:  # one that fails must not keep the others from being measured
            self._not(
                one, f"{type(error).__name__}: {error}" if not isinstance(error, NotMeasuredError) else str(error)
            )
            self._stage.tidy()
            return
        after = machine.look()
        result = {"readings": readings, "before": before.to_dict(), "after": after.to_dict()}
        self._results.add(one.name, result)

    def _why_not(self, one: Measurement) -> str:
        takes_s = one.takes_s[1 if self._stage.quick else 0]
        if takes_s is None:
            return "--quick leaves it out"
        if takes_s > self._left_s():
            left_s = max(self._left_s(), 0.0)
            return f"it takes {takes_s:.0f} s, of the {self._limit_s / 60:.0f} minutes {left_s:.0f} s are left"
        return next(filter(None, (missing(need, self._stage.image) for need in one.needs)), "")

    def _left_s(self) -> float:
        return self._limit_s - _END_S - (time.monotonic() - self._began_s)

    def _not(self, one: Measurement, why: str) -> None:
        self.why_not[one.name] = why
        self._stage.say(f"{', '.join(one.promises)}: not measured: {why}")

    def _tell(self, reading: Reading) -> None:
        target = PROMISES[reading.promise].target
        kept = "does not count" if reading.excused else "met" if target.is_met_by(reading.value) else MISSED
        of = f" ({reading.of})" if reading.of else ""
        self._stage.say(f"  {reading.promise}: {reading.value:.4g}{of}, {target}: {kept}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table and write it."""
    parser = _parser()
    chosen = parser.parse_args(arguments)
    if unknown := set(chosen.only or ()) - set(PROMISES):
        parser.error(f"--only: got {', '.join(sorted(unknown))}, expected ids as --list has them")
    names = list(dict.fromkeys(chosen.only or PROMISES))
    if chosen.list:
        print(_listed())
        return 0
    end_on_sigterm()
    results = Results(chosen.folder / ("quick" if chosen.quick else "whole"))
    wanted = [one for one in ordered() if set(one.promises) & set(names)]
    shown = [name for name in PROMISES if any(name in one.promises for one in wanted)]
    stage = Stage(
        chosen.folder,
        quick=chosen.quick,
        shortest_s=chosen.shortest_s or _SHORTEST_S[chosen.quick],
        image=chosen.image,
    )
    limit_s = 60 * chosen.minutes if chosen.minutes else _LIMIT_S[chosen.quick]
    run = Run(stage, results, limit_s)
    stage.say = lambda text: print(f"{run.elapsed():>5}  {text}", flush=True)

    def written(path: Path) -> list[Any]:
        kept = {one.name: results[one.name] for one in wanted if one.name in results}
        best = max((result[when]["speed"] for result in kept.values() for when in ("before", "after")), default=1.0)
        found = rows([PROMISES[name] for name in shown], measured_by(), kept, run.why_not)
        about = {"quick": chosen.quick, "shortest_s": stage.shortest_s, "cores": machine.cores()}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(to_json(found, best, **about), indent=1) + "\n")
        return [found, best]

    newest = chosen.folder / "results.json"
    try:
        stage.begin()
        for number, one in enumerate(wanted, start=1):
            print(f"{run.elapsed():>5}  [{number} of {len(wanted)}] {', '.join(one.promises)}", flush=True)
            if one.name in results:
                stage.say("measured before the interruption")
                continue
            run.measure(one)
            written(newest)
    except (KeyboardInterrupt, SystemExit) as asked:
        stage.say("interrupted; the same command goes on from here")
        if isinstance(asked, SystemExit):
            raise
        return 130
    finally:
        stage.close()
    found, best = written(newest)
    print(table(found, best))
    if chosen.json:
        chosen.json.parent.mkdir(parents=True, exist_ok=True)
        chosen.json.write_text(newest.read_text())
    for one in wanted:
        results.forget(one.name)  # the run is over: the next one begins anew
    return int(chosen.strict and any(row.verdict == MISSED for row in found))


def _listed() -> str:
    lines = []
    for promise in PROMISES.values():
        lines.append(
            f"{promise.id:17} {promise.target!s:21} {promise.sentence}" + f" [{promise.place}]" * bool(promise.place)
        )
    lines.append("\nFigures of the guides that have a benchmark of their own:")
    lines += [f"  python -m {command:22} {figure}" for figure, command in ELSEWHERE.items()]
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.promises", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter: ten minutes at most, else forty")
    parser.add_argument("--only", nargs="+", metavar="ID", help="some promises, and what is measured with them")
    parser.add_argument("--list", action="store_true", help="print all promises, and where each is made")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a promise is missed")
    parser.add_argument("--shortest-s", type=float, default=None, help="shortest time of a training (40; quick: 24)")
    parser.add_argument("--minutes", type=float, default=None, help="begin nothing that takes longer than this in all")
    parser.add_argument("--image", default="paceline-trainer:latest", help="image with Python and torch")
    parser.add_argument("--folder", type=Path, default=Path("build/promises"), help="results so far, and scratch")
    parser.add_argument("--json", type=Path, default=None, metavar="FILE")
    return parser


if __name__ == "__main__":
    sys.exit(main())
