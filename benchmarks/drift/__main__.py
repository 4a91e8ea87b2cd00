"""Measures the drift tests: ``python -m benchmarks.drift [--peers] [--only SECTION] [--windows 100] [--json FILE]``.

The default takes a few minutes and measures Paceline alone. ``--only embeddings`` takes 20 seconds for each window,
``--only text`` 5 seconds, ``--only dependent-rows`` 10. ``--only dependent-errors`` measures errors of a model that
depend on each other, ``--real`` the alarms of several tools in real data.
``--peers`` compares Paceline with Evidently, NannyML,
alibi-detect and river, which it installs into ``build/drift`` (5 GB).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.drift import compared, cost, dependent_errors, environments, joint, performance, real, real_data
from benchmarks.drift.dependent_rows import dependent_rates
from benchmarks.drift.embeddings import embedding_rates, print_embeddings
from benchmarks.drift.frames import ten_features
from benchmarks.drift.growing import growing_rates, print_growing
from benchmarks.drift.rates import detection_rate, detector_rates, false_alarm_rate
from benchmarks.drift.support import measure_coverage, print_coverage
from benchmarks.drift.text import print_texts, text_rates
from benchmarks.drift.weather import print_weather, weather_drift
from benchmarks.options import between, writable

ALONE = ("rates", "concept")
LONG = ("embeddings", "text", "dependent-rows", "dependent-errors", "real")
WITH_PEERS = ("growing", "tools", "multivariate", "detectors", "performance", "support", "cost")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark, print its tables and write them as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.drift", description=__doc__)
    parser.add_argument("--data", type=Path, help="CSV of daily weather records with a 0/1 column `target`")
    parser.add_argument("--json", type=writable, help="also write the figures as JSON")
    parser.add_argument("--windows", type=between(1, 10_000), default=100, help="windows for each figure (100)")
    parser.add_argument("--peers", action="store_true", help="compare with other tools (about an hour)")
    parser.add_argument("--real", action="store_true", help="the same as --only real")
    parser.add_argument("--only", choices=(*ALONE, *LONG, *WITH_PEERS), nargs="+", help="measure only these sections")
    parser.add_argument(
        "--rows",
        type=between(100, 10**9),
        nargs="+",
        default=cost.DEFAULT_ROWS,
        help="numbers of rows of the files in the section `cost` (up to 10 million)",
    )
    options = parser.parse_args(arguments)
    sections = options.only or (("real",) if options.real else WITH_PEERS if options.peers else ALONE)
    started = time.monotonic()
    result: dict[str, Any] = {"windows": options.windows}
    if {"tools", "multivariate", "detectors", "cost"} & set(sections):
        for name in environments.REQUIREMENTS:
            environments.install(name)
    if "rates" in sections:
        result |= _measure_rates(options.windows)
    if "concept" in sections:
        print("Alarms after 1,500 rows with a model error of 15 %, in 500 rows with an error of")
        result["detectors"] = detector_rates(options.windows)
        for row in result["detectors"]:
            delay = "" if row["delay_rows"] is None else f"   median delay {row['delay_rows']:.0f} rows"
            print(f"  {row['detector']:<13} {row['error_after']:.0%}: alarm in {row['alarms']:6.1%}{delay}")
    if "embeddings" in sections:
        print(f"Drift reported in {options.windows} pairs of windows of vectors, by change of the second window")
        result["embeddings"] = embedding_rates(options.windows)
        print_embeddings(result["embeddings"])
    if "text" in sections:
        print(f"Drift reported in {options.windows} pairs of windows of texts, by change of the second window")
        result["text"] = text_rates(options.windows)
        print_texts(result["text"])
    if "dependent-rows" in sections:
        print("Alarms in rows without drift that depend on each other, without and with the parameters for them")
        result["dependent_rows"] = dependent_rates(options.windows)
    if "dependent-errors" in sections:
        print(f"Alarms in {options.windows} streams of errors that depend on each other, by rise of the error")
        result["dependent_errors"] = dependent_errors.alarm_rates(options.windows)
        dependent_errors.print_rates(result["dependent_errors"])
    if "real" in sections:
        for name in ("nannyml", "evidently"):
            environments.install(name)
        print("Alarms of tools that watch the error of a model, by kind of window")
        result["real"] = []
        for data in real_data.read_sets(options.data):
            result["real"].append(real.measure(data))
            real.print_real(result["real"][-1])
    if "growing" in sections:
        print(f"Alarms and median rows until the alarm in {options.windows} windows that grow to 3,000 rows")
        result["growing"] = growing_rates(options.windows)
        print_growing(result["growing"])
    if "tools" in sections:
        print(f"False alarms and detected changes of one of ten features in {options.windows} windows, by tool")
        result["tools"] = compared.compare_tools(options.windows)
        compared.print_tools(result["tools"])
    if "multivariate" in sections:
        print(f"False alarms and detected changes of a dependence of features in {options.windows} windows, by tool")
        result["multivariate"] = joint.compare_joint_tests(options.windows)
        joint.print_joint_tests(result["multivariate"])
    if "detectors" in sections:
        print(f"Alarms in {options.windows} streams after 1,500 rows with a model error of 15 %, by error of 500 rows")
        result["river"] = compared.compare_detectors(options.windows)
        compared.print_detectors(result["river"])
    if "performance" in sections:
        environments.install("nannyml")
        print("Errors estimated without labels in ten windows of each data set, and realised errors")
        result["estimates"] = performance.estimate_data_sets()
        performance.print_data_sets(result["estimates"])
        print(f"Alarms in {options.windows} windows of {performance.ROWS} rows by their estimated error")
        result["estimate_alarms"] = performance.alarm_rates(options.windows)
        performance.print_alarms(result["estimate_alarms"])
    if "support" in sections:
        environments.install("nannyml")
        print("Windows whose realised error is within two standard errors of the estimate, by tool")
        result["support"] = measure_coverage(options.windows, options.data)
        print_coverage(result["support"])
    if "cost" in sections:
        print(
            "One check of a Parquet file with 20 columns: CPU seconds (range), seconds of wall-clock time, peak memory"
        )
        result["cost"] = cost.measure_checks(options.rows)
    if options.data is not None and not {"real", "support"} & set(sections):
        result["weather"] = weather_drift(options.data, options.windows)
        print_weather(options.data.name, result["weather"])
    result["seconds"] = round(time.monotonic() - started, 1)
    print(f"{result['seconds']} s")
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=1))
    return 0


def _measure_rates(windows: int) -> dict[str, Any]:
    result: dict[str, Any] = {"false_alarms": {}, "detection": {}}
    with ProcessPoolExecutor() as pool:
        alarms = {n: pool.submit(false_alarm_rate, ten_features, windows, n) for n in (100, 500, 5000)}
        detected = {
            n: {shift: pool.submit(detection_rate, ten_features, windows, n, shift) for shift in (0.1, 0.25, 0.5, 1.0)}
            for n in (100, 200, 500, 5000)
        }
        print(f"False alarms in {windows} windows without drift, ten features, default settings")
        for n, rate in alarms.items():
            result["false_alarms"][n] = rate.result()
            print(f"  n = {n:<5}  {rate.result():6.1%}")
        print(f"Detection of a shift in one of ten features, {windows} windows")
        for n, rates in detected.items():
            result["detection"][n] = shares = {shift: rate.result() for shift, rate in rates.items()}
            print(f"  n = {n:<5}  " + "   ".join(f"{shift:g} sd {share:6.1%}" for shift, share in shares.items()))
    return result


if __name__ == "__main__":
    sys.exit(main())
