"""Measures the round trip of a model's state to the parameter server and back, compared with gloo.

``python -m benchmarks.peers [--json FILE]`` measures the round trip between two processes for several model sizes,
alternately over Paceline's own connection and over torch's gloo.
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

from paceline.train.parameter_server.peer import DisconnectedError, Peer, connect, listen

SIZES = (1_000, 100_000, 1_000_000, 25_000_000)  # four-byte numbers; ResNet-50 has 25 million
ROUNDS, REPEATS = 20, 5


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark, print its table and write the figures as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--json", type=Path, default=None, metavar="FILE")
    chosen = parser.parse_args(arguments)
    rows = []
    print(f"{'numbers':>12} {'own, ms':>10} {'gloo, ms':>10} {'own / gloo':>10}")
    for size in SIZES:
        own, gloo = _round_trips_ms(size)
        rows.append({"numbers": size, "own_ms": own, "gloo_ms": gloo, "ratio": own / gloo})
        print(f"{size:12,} {own:10.2f} {gloo:10.2f} {own / gloo:10.2f}")
    if chosen.json:
        chosen.json.write_text(json.dumps({"round_trips": rows}, indent=1) + "\n")
    return 0


def _round_trips_ms(size: int) -> tuple[float, float]:
    """Return the median milliseconds of a round trip over Paceline's connection and over gloo."""
    context = multiprocessing.get_context("spawn")
    listener = listen("127.0.0.1", 0)
    with tempfile.TemporaryDirectory() as folder:
        rendezvous = str(Path(folder) / "gloo")
        server = context.Process(target=_serve_round_trips, args=(listener.address[1], rendezvous, size), daemon=True)
        server.start()
        peer = Peer(listener.accept())
        group = _create_gloo_group(rendezvous, 0)
        vector = torch.ones(size)

        def exchange_over_paceline() -> None:
            peer.send({"kind": "done"}, vector)
            peer.receive(vector)

        def exchange_over_gloo() -> None:
            group.send([vector], 1, 0).wait()
            group.recv([vector], 1, 0).wait()

        times: dict[str, list[float]] = {"own": [], "gloo": []}
        for _ in range(REPEATS):
            for name, round_trip in (("own", exchange_over_paceline), ("gloo", exchange_over_gloo)):
                peer.send({"kind": name})
                times[name] += _time_round_trips(round_trip)
        peer.close()
        server.join(10)
    return statistics.median(times["own"]), statistics.median(times["gloo"])


def _time_round_trips(round_trip: Callable[[], None]) -> list[float]:
    round_trip()
    times = []
    for _ in range(ROUNDS):
        began_s = time.perf_counter()
        round_trip()
        times.append(1000 * (time.perf_counter() - began_s))
    return times


def _serve_round_trips(port: int, rendezvous: str, size: int) -> None:
    """Reply to the round trips in the second process."""
    torch.set_num_threads(1)
    peer = connect("127.0.0.1", port, b"")
    group = _create_gloo_group(rendezvous, 1)
    vector = torch.ones(size)
    try:
        while True:
            kind = peer.receive()["kind"]
            for _ in range(ROUNDS + 1):
                if kind == "own":
                    peer.receive(vector)
                    peer.send({"kind": "accepted"}, vector)
                else:
                    group.recv([vector], 0, 0).wait()
                    group.send([vector], 0, 0).wait()
    except DisconnectedError:
        pass


def _create_gloo_group(rendezvous: str, rank: int) -> Any:
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    return dist.ProcessGroupGloo(dist.FileStore(rendezvous, 2), rank, 2, options)


if __name__ == "__main__":
    sys.exit(main())
