"""What happens to a training job in a pod when its cluster, a node or its worker process fails.

``python -m benchmarks.pod_faults`` needs a cluster (``KUBECONFIG``) whose nodes have the trainer image. Each round runs
one task in a namespace of its own, with a process for each try, and causes one fault at a random moment. Afterwards the
model has to be that of an undisturbed run, no line of the job may be lost, the task's log has to name the event, and
nothing may be left. Done rounds are kept in a file and are not repeated.

The kubelet of a node and the API server stop only with the commands of the options, in which ``$NODE`` is the node's
name. Without them, a node does not stop, and the API server is away only for the task.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.options import between
from benchmarks.pod_faults.faults import FAULTS, none
from benchmarks.pod_faults.rounds import Commands, Round, Strike, repeated_lines


def run_round(
    strike: Strike, seed: str, folder: Path, image: str, expected: Any = None, commands: Commands | None = None
) -> dict[str, Any]:
    """Run one round; return its figures and, in ``problems``, what went wrong. ``expected``: the right model."""
    shutil.rmtree(folder, ignore_errors=True)
    with Round(folder, image, random.Random(seed), commands or Commands()) as one:
        began_s = time.monotonic()
        try:
            message = strike(one)
            one.task.wait()
            problems = one.problems(expected, message)
        except (TimeoutError, RuntimeError) as error:
            problems = [str(error)]
        return {
            "details": one.details,
            "problems": problems,
            "tries": len(one.task.tries),
            "repeated": repeated_lines(one.task),
            "took_s": round(time.monotonic() - began_s, 1),
            "model": one.task.result(),
        }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the rounds and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pod_faults", description=__doc__)
    parser.add_argument("--rounds", type=between(1, 1000), default=10, help="rounds of each fault (10)")
    parser.add_argument("--seed", type=int, default=None, help="chooses the moments (printed; by default, a new one)")
    parser.add_argument("--only", nargs="+", choices=sorted(FAULTS), default=list(FAULTS), metavar="FAULT")
    parser.add_argument("--image", default="paceline-trainer:latest")
    parser.add_argument("--folder", type=Path, default=Path("build/pod_faults"), help="of the logs and results")
    parser.add_argument("--away-s", type=float, default=60.0, help="how long the kubelet and the server are away (60)")
    for name in ("stop-node", "start-node", "stop-server", "start-server"):
        parser.add_argument(f"--{name}", default="", metavar="COMMAND")
    chosen = parser.parse_args(arguments)
    commands = Commands(chosen.stop_node, chosen.start_node, chosen.stop_server, chosen.start_server, chosen.away_s)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # a round then restores the cluster
    chosen.folder.mkdir(parents=True, exist_ok=True)
    path = chosen.folder / "results.json"
    done: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"rounds": {}}
    seed = done.setdefault("seed", chosen.seed if chosen.seed is not None else random.randrange(10**6))
    if chosen.seed not in (None, seed):
        parser.error(f"argument --seed: got {chosen.seed}, expected {seed}, with which {path} was begun")
    print(f"seed {seed}")
    expected = done.get("model")
    if expected is None:
        undisturbed = run_round(none, str(seed), chosen.folder / "undisturbed", chosen.image)
        if undisturbed["problems"]:
            print("undisturbed:", *undisturbed["problems"], sep="\n  ")
            return 1
        expected = done["model"] = undisturbed["model"]
    for number in range(1, chosen.rounds + 1):
        for name in chosen.only:
            key = f"{name} {number}"
            if key in done["rounds"] or (name == "kubelet away" and not commands.stop_node):
                continue
            folder = chosen.folder / key.replace(" ", "-")
            figures = run_round(FAULTS[name], f"{seed} {key}", folder, chosen.image, expected, commands)
            done["rounds"][key] = {"fault": name, **figures}
            path.write_text(json.dumps(done, indent=1) + "\n")
            tries, verdict = figures["tries"], "; ".join(figures["problems"]) or "right"
            print(f"{key:18}{figures['took_s']:7.1f} s {tries:3} tries  {figures['details']}: {verdict}", flush=True)
    _print_table(list(done["rounds"].values()))
    return 1 if any(one["problems"] for one in done["rounds"].values()) else 0


def _print_table(rounds: list[dict[str, Any]]) -> None:
    print(f"\n| {'fault':16} | rounds | right | tries | lines read again | median s |\n|---|---|---|---|---|---|")
    for name in FAULTS:
        mine = [one for one in rounds if one["fault"] == name]
        if mine:
            right = sum(not one["problems"] for one in mine)
            tries = statistics.mean(one["tries"] for one in mine)
            took_s = statistics.median(one["took_s"] for one in mine)
            repeated = sum(one["repeated"] for one in mine)
            print(f"| {name:16} | {len(mine)} | {right} | {tries:.1f} | {repeated} | {took_s:.0f} |")


if __name__ == "__main__":
    sys.exit(main())
