"""What happens to deferred training jobs when the processes that they need fail.

``python -m benchmarks.deferred_faults`` needs a Docker engine (``DOCKER_HOST``) with the trainer image. Each round runs
three jobs with deadlines of 60, 90 and 120 s in a real Airflow, and causes one fault at a random moment. Afterwards
each model has to be whole, each job has to have had one container, nothing may be left, and no job may be late that was
on time when the fault came. Done rounds are kept in a file and are not repeated.

The database restarts only with the options ``--database`` and ``--restart-database``.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import docker
from demo.airflow_process import AirflowProcess

from benchmarks.deferred_faults.faults import FAULTS, Strike
from benchmarks.deferred_faults.rounds import Place, Round, engine_proxy
from benchmarks.options import between


def run_round(strike: Strike, seed: str, place: Place) -> dict[str, Any]:
    """Run one round; return its figures and, in ``problems``, what went wrong."""
    round_, began_s = Round(place, random.Random(seed)), time.monotonic()
    errors_pct: list[float] = []
    try:
        with round_.ends:
            strike(round_)
            problems = round_.problems()
            errors_pct = round_.errors_pct()
    except TimeoutError as error:  # Airflow may not respond
        problems = [str(error)]
    took_s = round(time.monotonic() - began_s, 1)
    return {
        "run": round_.run_id,
        "details": round_.details,
        "problems": problems,
        "errors_pct": errors_pct,
        "took_s": took_s,
    }


@contextmanager
def started(folder: Path, chosen: argparse.Namespace) -> Iterator[Place]:
    """Start an Airflow in ``folder`` whose engine is behind a proxy."""
    engine = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
    proxy = engine_proxy(folder / "engine.sock", engine)
    config: dict[str, object] = {"triggerer.job_heartbeat_sec": 1, "dag_processor.stale_dag_threshold": 10}
    if chosen.database is not None:
        config["database.sql_alchemy_conn"] = chosen.database
    environment = {"DOCKER_HOST": f"unix://{folder / 'engine.sock'}"}
    try:
        with AirflowProcess(folder / "airflow", config=config, environment=environment) as airflow:
            client = docker.APIClient(engine, version="auto")
            place = Place(airflow, proxy, client, chosen.restart_database)
            place.write_dag()
            yield place
    finally:
        proxy.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the rounds and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.deferred_faults", description=__doc__)
    parser.add_argument("--rounds", type=between(1, 1000), default=10, help="rounds of each fault (10)")
    parser.add_argument("--seed", type=int, default=None, help="chooses the moments (printed; by default, a new one)")
    parser.add_argument("--only", nargs="+", choices=sorted(FAULTS), default=list(FAULTS), metavar="FAULT")
    parser.add_argument("--results", type=Path, default=Path("build/deferred_faults.json"), help="of the done rounds")
    parser.add_argument("--database", default=None, metavar="URL", help="of an empty database; SQLite by default")
    parser.add_argument("--restart-database", default="", metavar="COMMAND")
    chosen = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    path: Path = chosen.results
    path.parent.mkdir(parents=True, exist_ok=True)
    done: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"rounds": {}}
    seed = done.setdefault("seed", chosen.seed if chosen.seed is not None else random.randrange(10**6))
    if chosen.seed not in (None, seed):
        parser.error(f"argument --seed: got {chosen.seed}, expected {seed}, with which {path} was begun")
    print(f"seed {seed}")
    with tempfile.TemporaryDirectory(prefix="pace.") as folder, started(Path(folder), chosen) as place:
        for number, name in product(range(1, chosen.rounds + 1), chosen.only):
            key = f"{name} {number}"
            if key in done["rounds"] or (name == "database restarted" and not chosen.restart_database):
                continue
            figures = run_round(FAULTS[name], f"{seed} {key}", place)
            done["rounds"][key] = {"fault": name, **figures}
            path.write_text(json.dumps(done, indent=1) + "\n")
            verdict = "; ".join(figures["problems"]) or "right"
            ends = " ".join(f"{error:+.1f} %" for error in figures["errors_pct"])
            print(f"{key:28}{figures['took_s']:7.1f} s  {figures['details']} ({ends}): {verdict}", flush=True)
    _print_table(list(done["rounds"].values()))
    return 1 if any(one["problems"] for one in done["rounds"].values()) else 0


def _print_table(rounds: list[dict[str, Any]]) -> None:
    print(f"\n| {'fault':24} | rounds | right | deviation from the deadlines |\n|---|---|---|---|")
    for name in FAULTS:
        mine = [one for one in rounds if one["fault"] == name]
        if mine:
            right, errors = sum(not one["problems"] for one in mine), [e for one in mine for e in one["errors_pct"]]
            spread = f"{min(errors):+.1f} to {max(errors):+.1f} %" if errors else "-"
            print(f"| {name:24} | {len(mine)} | {right} | {spread} |")


if __name__ == "__main__":
    sys.exit(main())
