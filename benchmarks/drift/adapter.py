"""Runs one tool in the tool's environment: reads Parquet files or streams, and prints its findings as JSON.

``benchmarks.drift.environments.run_adapter`` starts it as ``python -m benchmarks.drift.adapter``.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

MIB = 2**20


def test_windows(folder: Path, tool_name: str) -> dict[str, list[list[str]]]:
    """Return what the tool reports (see ``Tool``), for each change and each window of ``folder``."""
    import pandas as pd

    from benchmarks.drift.frames import CHANGES, REFERENCE, WINDOWS_PER_REFERENCE
    from benchmarks.drift.joint_tools import JOINT_TOOLS
    from benchmarks.drift.tools import TOOLS, count_in_evidently_report

    tool = (TOOLS | JOINT_TOOLS)[tool_name]
    references = dict(iter(pd.read_parquet(folder / f"{REFERENCE}.parquet").groupby("window")))
    tests: dict[tuple[int, str | None], Any] = {}
    found: dict[str, list[list[str]]] = {}
    for path in sorted(folder.glob("*.parquet")):
        change = path.stem
        if change == REFERENCE:
            continue
        column = CHANGES[change][0] if tool.by_column and change in CHANGES else None
        found[change] = []
        for number, (_, window) in enumerate(pd.read_parquet(path).groupby("window")):
            key = (number // WINDOWS_PER_REFERENCE, column)
            reference = _features(references[key[0]], column)
            if key not in tests:
                tests[key] = tool.prepare(reference, len(window))
            found[change].append(tests[key](_features(window, column)))
            if tool_name == "evidently" and number == 0:
                reported = count_in_evidently_report(reference, _features(window, column))
                assert reported == len(found[change][0]), f"the report finds {reported} columns"
    return found


def _features(window: Any, column: str | None = None) -> Any:
    frame = window.drop(columns="window").reset_index(drop=True)
    return frame if column is None else frame[[column]]


def find_changes(path: Path) -> dict[str, list[list[int]]]:
    """Return the rows at which each of river's detectors reports a change, for each stream of an npz file."""
    import numpy as np

    from benchmarks.drift.tools import river_detectors

    streams = np.load(path)["errors"]
    found: dict[str, list[list[int]]] = {}
    for name, make in river_detectors().items():
        found[name] = []
        for stream in streams:
            detector, rows = make(), []
            for row, value in enumerate(stream.tolist()):
                detector.update(value)
                if detector.drift_detected:
                    rows.append(row)
            found[name].append(rows)
    return found


def check_files(
    small: Path, reference: Path, current: Path, tool_name: str, limit_s: int, memory_mib: int
) -> dict[str, Any]:
    """Compare two Parquet files; return seconds of the check and of the start, and the peak memory in MiB.

    The start is the import of the tool and the comparison of a ``small`` file with itself, because tools import some
    packages in the first check. ``cpu_s`` depends less on other processes of the machine than ``check_s``. Above
    ``limit_s`` seconds of CPU time, the kernel ends the process.
    """
    resource.setrlimit(resource.RLIMIT_AS, (memory_mib * MIB, memory_mib * MIB))
    resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s + 5))
    began_s = time.perf_counter()
    imports = {"paceline": _import_paceline, "evidently": _import_evidently, "nannyml": _import_nannyml}
    check = imports.get(tool_name, _import_alibi)()
    check(small, small)
    start_cpu_s, started_s = time.process_time(), time.perf_counter()
    drifted = check(reference, current)
    return {
        "start_cpu_s": start_cpu_s,
        "start_s": started_s - began_s,
        "cpu_s": time.process_time() - start_cpu_s,
        "check_s": time.perf_counter() - started_s,
        "peak_mib": _peak_mib(),
        "drifted": drifted,
    }


def estimate_windows(folder: Path, tool: str, kind: str) -> dict[str, Any]:
    """Return the estimated and the realised errors of ten consecutive windows of current data, and the cost."""
    import numpy as np
    import pandas as pd

    from benchmarks.drift.estimators import ESTIMATORS, realise

    reference, current = (pd.read_parquet(folder / f"{name}.parquet") for name in ("reference", "current"))
    rows = len(current) // 10
    windows = [current[start : start + rows].reset_index(drop=True) for start in range(0, rows * 10, rows)]
    ESTIMATORS[tool][1](kind, reference[:1000], 100)(windows[0][:100])  # imports the tool
    began_s = time.process_time()
    estimate = ESTIMATORS[tool][1](kind, reference, rows)
    estimates = [estimate(window)[0] for window in windows]
    cpu_s = time.process_time() - began_s
    realised = [realise(kind, reference, window, tool) for window in windows]
    before = realise(kind, reference, reference, tool)
    return {
        "estimates": estimates,
        "realised": realised,
        "difference": float(np.abs(np.subtract(estimates, realised)).mean()),
        "unchanged": float(np.abs(np.subtract(before, realised)).mean()),
        "cpu_s": cpu_s,
        "peak_mib": _peak_mib(),
    }


def count_alarms(folder: Path, tool: str, kind: str) -> dict[str, float]:
    """Return the share of windows of each scenario with an alarm."""
    import pandas as pd

    from benchmarks.drift.estimators import ESTIMATORS
    from benchmarks.drift.frames import REFERENCE_WINDOWS, WINDOWS_PER_REFERENCE
    from benchmarks.drift.performance import SCENARIOS

    def read(name: str) -> list[Any]:
        return [_features(frame) for _, frame in pd.read_parquet(folder / f"{name}.parquet").groupby("window")]

    references, windows = read("reference"), {name: read(name) for name in SCENARIOS}
    rows = len(references[0]) // REFERENCE_WINDOWS
    alarms = dict.fromkeys(SCENARIOS, 0)
    for number, reference in enumerate(references):
        first = number * WINDOWS_PER_REFERENCE
        estimate = ESTIMATORS[tool][1](kind, reference, rows)
        for name, frames in windows.items():
            alarms[name] += sum(estimate(frame)[1] for frame in frames[first : first + WINDOWS_PER_REFERENCE])
    return {name: count / len(windows[name]) for name, count in alarms.items()}


def estimate_intervals(folder: Path, tool: str, kind: str) -> list[tuple[float, float, float, bool]]:
    """Return for each window its realised error and the estimate of ``Interval``."""
    import pandas as pd

    from benchmarks.drift.estimators import INTERVALS, realise

    reference, current = (pd.read_parquet(folder / f"{name}.parquet") for name in ("reference", "current"))
    windows = [_features(frame) for _, frame in current.groupby("window")]
    estimate = INTERVALS[tool](kind, reference, max(map(len, windows)))  # NannyML splits a longer window
    return [(realise(kind, reference, window, tool), *map(float, estimate(window))) for window in windows]


def _peak_mib() -> float:
    """Return the peak resident memory of this process.

    On Linux, ``ru_maxrss`` includes the memory of the parent process; VmHWM does not.
    """
    status = Path("/proc/self/status")
    if status.exists():
        return int(status.read_text().split("VmHWM:")[1].split()[0]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / MIB


def _import_paceline() -> Any:
    from paceline.sensors.check import DriftCheck

    return lambda reference, current: len(
        DriftCheck(reference=str(reference), current=str(current)).run().drifted_features
    )


def _import_evidently() -> Any:
    import pandas as pd
    from evidently.presets import DataDriftPreset  # noqa: F401

    from benchmarks.drift.tools import count_in_evidently_report

    return lambda reference, current: count_in_evidently_report(pd.read_parquet(reference), pd.read_parquet(current))


def _import_nannyml() -> Any:
    import nannyml  # noqa: F401

    return _import_tool("nannyml")


def _import_alibi() -> Any:
    from alibi_detect.cd import TabularDrift  # noqa: F401

    return _import_tool("alibi-fdr")


def _import_tool(name: str) -> Any:
    import pandas as pd

    from benchmarks.drift.tools import TOOLS

    def check(reference: Path, current: Path) -> int:
        test = TOOLS[name].prepare(pd.read_parquet(reference), 0)
        return len(test(pd.read_parquet(current)))

    return check


def main() -> None:
    """Print the result of one of the functions above, as JSON."""
    mode, *arguments = sys.argv[1:]
    if mode == "windows":
        result: Any = test_windows(Path(arguments[0]), arguments[1])
    elif mode == "streams":
        result = find_changes(Path(arguments[0]))
    elif mode == "realised":
        from benchmarks.drift.realised import realised_alarms

        result = realised_alarms(Path(arguments[0]), arguments[1])
    elif mode == "export":
        from benchmarks.drift.estimators import export_data_sets

        result = export_data_sets(Path(arguments[0]))
    elif mode in ("estimates", "alarms"):
        measure = estimate_windows if mode == "estimates" else count_alarms
        result = measure(Path(arguments[0]), *arguments[1:])
    elif mode == "intervals":
        result = estimate_intervals(Path(arguments[0]), *arguments[1:])
    else:
        small, reference, current = map(Path, arguments[:3])
        result = check_files(small, reference, current, arguments[3], int(arguments[4]), int(arguments[5]))
    # Some tools print messages; the result is the last line.
    print("\n" + json.dumps(result))


if __name__ == "__main__":
    main()
