"""Run the demo: ``python -m demo``. ``edge`` trains on a fleet; ``up`` keeps an Airflow running."""

from __future__ import annotations

import argparse
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

from demo.airflow_process import free_port
from demo.screen import Screen
from demo.story import Demo, abort_runs, check_machine, is_demo_folder, lock_folder, run
from demo.watch import EDGE_TASKS
from paceline.contract import Deadline
from paceline.errors import InvalidInputError, PacelineError

# `up` has its own folder, because the next demo removes the runs and models of the last one.
_FOLDERS = {"run": "build/demo", "edge": "build/demo-edge", "up": "build/up"}


def main(arguments: list[str] | None = None) -> int:
    """Run the demo and return the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.what == "edge" and options.runtime == "process":
        parser.error("--runtime: got 'process', expected 'docker': a fleet needs containers")
    try:
        Deadline.parse(options.deadline, "--deadline")
    except InvalidInputError as error:
        parser.error(str(error))
    folder = options.folder or Path(_FOLDERS[options.what])
    if not is_demo_folder(folder):
        parser.error(f"--folder: got {str(folder)!r}, expected a new or empty folder, or that of an earlier demo")
    demo = Demo(
        folder=folder.absolute(),
        dags=Path(__file__).parents[1] / "dags",
        runtime=options.runtime,
        deadline=options.deadline,
        params={} if options.epochs is None else {"epochs": options.epochs},
    )
    screen = Screen()
    try:
        with lock_folder(demo.folder):
            if options.what == "up":
                return _keep_airflow_running(demo, screen, options.port)
            return _run_on_fleet(demo, screen) if options.what == "edge" else _run(demo, screen)
    except KeyboardInterrupt:
        if options.what == "up":
            screen.step(
                "Stopped", "Airflow and its jobs on this machine have ended; the same command continues from here"
            )
            return 0
        screen.print_failure("Stopped", "by Ctrl-C; no process is left running")
        return 130
    except (PacelineError, TimeoutError) as error:
        screen.print_failure("The demo failed", str(error))
        if (demo.home / "logs").exists():
            screen.print_plain(f"  logs: {_relative_path(demo.home / 'logs')}")
        return 1


def _run(demo: Demo, screen: Screen) -> int:
    screen.title(
        "Paceline: retrain a drifted model by a deadline",
        "Real Airflow, real flights from 2013, one run of the DAG retrain_on_drift.",
    )
    summary = run(demo, screen)
    next_step = (
        f"`make up FOLDER={_relative_path(demo.folder)}` opens this run in Airflow, until the next demo removes it"
    )
    _print_files(demo, screen, summary, next_step)
    return 0 if summary["dag_run_state"] == "success" else 1


def _run_on_fleet(demo: Demo, screen: Screen) -> int:
    from demo import edge

    screen.title(
        "Paceline: retrain a model on edge machines, alongside their normal workload",
        f"Real Airflow, real containers on emulated machines, one run of the DAG {edge.DAG}.",
    )
    demo = replace(demo, dag=edge.DAG, tasks=EDGE_TASKS, training=edge.TRAINING)
    summary = edge.run_edge(demo, screen)
    _print_files(demo, screen, summary, "describe your own machines (docs/fleet.md)")
    return 0 if summary["dag_run_state"] == "success" else 1


def _print_files(demo: Demo, screen: Screen, summary: dict[str, Any], next_step: str) -> None:
    screen.print_plain("")
    for name in ("summary.json", "pace.png"):
        if (demo.folder / name).exists():
            screen.print_plain(f"  {_relative_path(demo.folder / name)}")
    if summary["dag_run_state"] == "success":
        screen.print_plain(f"  next: {next_step}")
    else:
        screen.print_plain(f"  logs: {_relative_path(demo.home / 'logs')}")


def _keep_airflow_running(demo: Demo, screen: Screen, port: int | None) -> int:
    screen.title(
        "Paceline: an Airflow with the example DAGs", "Airflow runs until Ctrl-C and keeps its runs and models."
    )
    check_machine()
    seeding = None if demo.store.exists() else demo.start_seeding()
    airflow = demo.airflow(port or _default_port())
    with screen.live_line():
        try:
            screen.show_activity("starting Airflow")
            airflow.start()
            if seeding is not None:
                screen.show_activity("filling the store and training the first champion")
                created = seeding.result()
                text = f"{created.flights:,} flights, champion with AUC {created.champion_auc:.3f} in March"
                screen.step("Store", text)
            screen.step("Airflow", "running")
            screen.print_plain(f"\n  open      {airflow.url}/dags/retrain_on_drift\n  user      admin")
            screen.print_plain(f"  password  in {_relative_path(airflow.home / 'passwords.json')}")
            screen.print_plain(f"  logs      {_relative_path(airflow.home / 'logs')}\n")
            screen.show_activity("running; stop with Ctrl-C")
            threading.Event().wait()
        finally:
            screen.show_activity("stopping Airflow")
            abort_runs(airflow, "~")
            airflow.stop()
    return 0


def _default_port() -> int:
    """Return 8080, Airflow's default, if it is free; otherwise any free port."""
    import socket

    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", 8080))
        except OSError:
            return free_port()
    return 8080


def _relative_path(path: Path) -> str:
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m demo", description=__doc__)
    parser.add_argument("what", nargs="?", choices=["run", "edge", "up"], default="run", help="demo to run")
    parser.add_argument("--runtime", choices=["auto", "docker", "process"], default="auto", help="where to train")
    parser.add_argument(
        "--deadline",
        default="60s",
        help="time from the start of the run, or with `edge` from the start of training (default %(default)s)",
    )
    parser.add_argument("--epochs", type=int, help="passes over the training data (default: as in the DAG)")
    defaults = ", ".join(_FOLDERS.values())
    parser.add_argument(
        "--folder", type=Path, help=f"folder for all files: new, empty, or of an earlier demo (default: {defaults})"
    )
    parser.add_argument("--port", type=int, help="port of Airflow for `up` (default: 8080 or another free port)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
