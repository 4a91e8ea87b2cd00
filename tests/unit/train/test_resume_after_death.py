"""A killed and restarted training job ends with the same weights, bit for bit, as an uninterrupted job.

All processes and signals are real. ``lives.py`` is the training code.
"""

import json
import os
from types import SimpleNamespace

import pytest

from .machines import HERE, INCLUDE


def make_scenario(loader, workers, samples, kills=(), **more):
    settings = {"loader": loader, "workers": workers, "samples": samples, "kills": list(kills)}
    return {"every_s": 0, "epochs": 3, **settings, **more}


# An epoch has four batches: batches 4 and 8 end an epoch, batch 12 ends training. With 10 samples, the last batch of an
# epoch is smaller. With 12 samples, it is full, and the sampler detects the end of the epoch only at the next request.
SOME_KILLS, MORE_KILLS = [("SIGTERM", 4), ("SIGKILL", 5)], [("SIGTERM", 1), ("SIGTERM", 12), ("SIGKILL", 12)]
SCENARIOS = {}
for loader, samples, workers, kills in (
    ("shuffle", 10, 0, SOME_KILLS + MORE_KILLS),
    ("shuffle", 12, 0, SOME_KILLS + MORE_KILLS),
    ("generator", 12, 0, SOME_KILLS),
    ("replacement", 10, 0, SOME_KILLS),
    ("weighted", 10, 0, SOME_KILLS),
    ("stream", 10, 0, SOME_KILLS + MORE_KILLS),
    ("shuffle", 10, 2, SOME_KILLS),
    ("generator", 12, 2, SOME_KILLS),
    ("persistent", 10, 2, SOME_KILLS),
    ("stream", 10, 2, SOME_KILLS),
):
    name = f"{loader}-{samples}-workers-{workers}"
    # A stream has no length. Each of two workers reads the whole stream.
    more = {"total": 12 * max(workers, 1)} if loader == "stream" else {}
    SCENARIOS[name] = make_scenario(loader, workers, samples, **more)
    for kill in kills:
        SCENARIOS[f"{name}-{kill[0]}-{kill[1]}"] = make_scenario(loader, workers, samples, [kill], **more)

BEFORE_THE_FIRST_SAVE = "shuffle-10-workers-0-before-the-first-save"
MANY_DEATHS = "shuffle-10-workers-0-many-deaths"
OLD_SAVE = "shuffle-10-workers-0-old-save"
STOPPED = "shuffle-10-workers-0-stopped"
LOOPS = "shuffle-12-workers-0-loops"
SCENARIOS |= {
    BEFORE_THE_FIRST_SAVE: make_scenario("shuffle", 0, 10, [("SIGKILL", 1)]),
    MANY_DEATHS: make_scenario("shuffle", 0, 10, [("SIGTERM", 2), ("SIGKILL", 4), ("SIGKILL", 9), ("SIGTERM", 9)]),
    OLD_SAVE: make_scenario("shuffle", 0, 10, [("SIGTERM", 7), ("SIGKILL", 11)], every_s=3600),
    STOPPED: make_scenario("shuffle", 0, 10, stop_after=6),
    f"{STOPPED}-SIGKILL": make_scenario("shuffle", 0, 10, [("SIGKILL", 6)], stop_after=6),
    f"{STOPPED}-after": make_scenario("shuffle", 0, 10, [("SIGKILL", 0)], stop_after=6),
    LOOPS: make_scenario("shuffle", 0, 12, loops=2),
    # Batch 13 is the first batch of the second loop. The last checkpoint is from the end of the first loop.
    f"{LOOPS}-SIGKILL": make_scenario("shuffle", 0, 12, [("SIGKILL", 5), ("SIGKILL", 13), ("SIGTERM", 17)], loops=2),
}


def uninterrupted_name(name):
    """Return the name of the scenario without kills that must have the same final state as ``name``."""
    return max((base for base, item in SCENARIOS.items() if not item["kills"] and name.startswith(base)), key=len)


@pytest.fixture(scope="module")
def run_scenario(tmp_path_factory, fork):
    """Return a function that runs a scenario, at most once, and returns its result."""
    finished = {}

    def get_result(name):
        if name not in finished:
            folder = tmp_path_factory.mktemp("lives")
            environment = {"PACELINE_OUTPUT": str(folder), "PACELINE_CHECKPOINT": str(folder / "checkpoint")}
            codes = []
            for restarts in range(len(SCENARIOS[name]["kills"]) + 1):
                command = [HERE / "lives.py", json.dumps(SCENARIOS[name]), restarts]
                codes.append(fork(command, env=os.environ | environment | {"PYTHONPATH": str(INCLUDE)}).wait())
            seen = [(folder / f"seen-{restarts}").read_text().splitlines() for restarts in range(len(codes))]
            finished[name] = SimpleNamespace(codes=codes, digest=(folder / "digest").read_text(), seen=seen)
        return finished[name]

    return get_result


CODES = {"SIGTERM": 143, "SIGKILL": -9}


@pytest.mark.parametrize("name", SCENARIOS)
def test_killed_job_ends_with_the_same_state(run_scenario, name):
    expected_codes = [CODES[signal] for signal, _ in SCENARIOS[name]["kills"]] + [0]
    assert run_scenario(name).codes == expected_codes
    assert run_scenario(name).digest == run_scenario(uninterrupted_name(name)).digest is not None


def test_different_scenarios_end_with_different_states(run_scenario):
    """If all scenarios ended with the same state, a comparison of states would prove nothing."""
    digests = [run_scenario(name).digest for name, scenario in SCENARIOS.items() if not scenario["kills"]]
    assert len(set(digests)) == len(digests)


def test_no_batch_is_repeated_or_skipped_after_sigterm(run_scenario):
    once = run_scenario("shuffle-10-workers-0").seen[0]
    first, second = run_scenario("shuffle-10-workers-0-SIGTERM-4").seen
    assert len(first) == 4
    assert first + second == once


def test_only_batches_after_the_last_save_are_repeated_after_sigkill(run_scenario):
    once = run_scenario("shuffle-10-workers-0").seen[0]
    first, second = run_scenario("shuffle-10-workers-0-SIGKILL-5").seen
    assert first[:4] + second == once
    before, redone, last = run_scenario(OLD_SAVE).seen
    assert before == once[:7]
    assert redone == once[7:11]
    assert last == once[7:]
