"""What it takes to send a state to the parameter server and get the newest back, against gloo.

Run it as ``python -m benchmarks.peers [--json FILE]``: for several sizes of a model, the time for a round trip between
two processes, by Paceline's own connection and by a pair of torch's gloo, by turns in one run.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from paceline.train.asynchronous.peer import GoneError, Peer, listen, reach

SIZES = (1_000, 100_000, 1_000_000, 25_000_000)  # numbers of four bytes; ResNet-50 has the last
ROUNDS, TURNS = 20, 5


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print a table, write it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--json", type=Path, default=None, metavar="FILE")
    chosen = parser.parse_args(arguments)
    rows = []
    print(f"{'numbers':>12} {'own, ms':>10} {'gloo, ms':>10} {'own / gloo':>10}")
    for size in SIZES:
        own, gloo = _by_turns(size)
        rows.append({"numbers": size, "own_ms": own, "gloo_ms": gloo, "ratio": own / gloo})
        print(f"{size:12,} {own:10.2f} {gloo:10.2f} {own / gloo:10.2f}")
    if chosen.json:
        chosen.json.write_text(json.dumps({"round_trips": rows}, indent=1) + "\n")
    return 0


def _by_turns(size: int) -> tuple[float, float]:
    """Median milliseconds of a round trip, by each."""
    context = multiprocessing.get_context("spawn")
    listener = listen("127.0.0.1", 0)
    with tempfile.TemporaryDirectory() as folder:
        meeting = str(Path(folder) / "gloo")
        other = context.Process(target=_answer, args=(listener.address[1], meeting, size), daemon=True)
        other.start()
        peer = Peer(listener.accept())
        group = _pair(meeting, 0)
        row = torch.ones(size)

        def own() -> None:
            peer.send({"kind": "done"}, row)
            peer.receive(row)

        def gloo() -> None:
            group.send([row], 1, 0).wait()
            group.recv([row], 1, 0).wait()

        times: dict[str, list[float]] = {"own": [], "gloo": []}
        for _ in range(TURNS):
            for name, go in (("own", own), ("gloo", gloo)):
                peer.send({"kind": name})
                times[name] += _timed(go)
        peer.close()
        other.join(10)
    return statistics.median(times["own"]), statistics.median(times["gloo"])


def _timed(go: Callable[[], None]) -> list[float]:
    go()
    times = []
    for _ in range(ROUNDS):
        began_s = time.perf_counter()
        go()
        times.append(1000 * (time.perf_counter() - began_s))
    return times


def _answer(port: int, meeting: str, size: int) -> None:
    """The other process."""
    torch.set_num_threads(1)
    peer = reach("127.0.0.1", port, b"")
    group = _pair(meeting, 1)
    row = torch.ones(size)
    try:
        while True:
            kind = peer.receive()["kind"]
            for _ in range(ROUNDS + 1):
                if kind == "own":
                    peer.receive(row)
                    peer.send({"kind": "taken"}, row)
                else:
                    group.recv([row], 0, 0).wait()
                    group.send([row], 0, 0).wait()
    except GoneError:
        pass


def _pair(meeting: str, rank: int) -> Any:
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    return dist.ProcessGroupGloo(dist.FileStore(meeting, 2), rank, 2, options)


if __name__ == "__main__":
    sys.exit(main())
