"""The promise: a training that is killed and started again ends with the same weights, bit for bit, as one that is not.

Every life is a real process that gets a real signal; see ``lives.py`` for the training.
"""

import json
import os
from types import SimpleNamespace

import pytest

from .machines import HERE, INCLUDE


def scenario(loader, workers, samples, kills=(), **more):
    own = {"loader": loader, "workers": workers, "samples": samples, "kills": list(kills)}
    return {"every_s": 0, "epochs": 3, **own, **more}


# Four batches in an epoch: 4 and 8 are ends of epochs, 12 is the last of all. With 10 samples an epoch's last batch is
# smaller, with 12 it is whole (a sampler is then at its end only when it is asked for one more).
SOME, MORE = [("SIGTERM", 4), ("SIGKILL", 5)], [("SIGTERM", 1), ("SIGTERM", 12), ("SIGKILL", 12)]
SCENARIOS = {}
for loader, samples, workers, kills in (
    ("shuffle", 10, 0, SOME + MORE),
    ("shuffle", 12, 0, SOME + MORE),
    ("generator", 12, 0, SOME),
    ("replacement", 10, 0, SOME),
    ("weighted", 10, 0, SOME),
    ("stream", 10, 0, SOME + MORE),
    ("shuffle", 10, 2, SOME),
    ("generator", 12, 2, SOME),
    ("persistent", 10, 2, SOME),
    ("stream", 10, 2, SOME),
):
    name = f"{loader}-{samples}-workers-{workers}"
    # A stream has no length; with two workers each reads all of it.
    more = {"total": 12 * max(workers, 1)} if loader == "stream" else {}
    SCENARIOS[name] = scenario(loader, workers, samples, **more)
    for kill in kills:
        SCENARIOS[f"{name}-{kill[0]}-{kill[1]}"] = scenario(loader, workers, samples, [kill], **more)

BEFORE_THE_FIRST_SAVE = "shuffle-10-workers-0-before-the-first-save"
MANY_DEATHS = "shuffle-10-workers-0-many-deaths"
OLD_SAVE = "shuffle-10-workers-0-old-save"
STOPPED = "shuffle-10-workers-0-stopped"
LOOPS = "shuffle-12-workers-0-loops"
SCENARIOS |= {
    BEFORE_THE_FIRST_SAVE: scenario("shuffle", 0, 10, [("SIGKILL", 1)]),
    MANY_DEATHS: scenario("shuffle", 0, 10, [("SIGTERM", 2), ("SIGKILL", 4), ("SIGKILL", 9), ("SIGTERM", 9)]),
    OLD_SAVE: scenario("shuffle", 0, 10, [("SIGTERM", 7), ("SIGKILL", 11)], every_s=3600),
    STOPPED: scenario("shuffle", 0, 10, stop_after=6),
    f"{STOPPED}-SIGKILL": scenario("shuffle", 0, 10, [("SIGKILL", 6)], stop_after=6),
    f"{STOPPED}-after": scenario("shuffle", 0, 10, [("SIGKILL", 0)], stop_after=6),
    LOOPS: scenario("shuffle", 0, 12, loops=2),
    # 13 is the first batch of the second loop: the last save is then of the end of the first.
    f"{LOOPS}-SIGKILL": scenario("shuffle", 0, 12, [("SIGKILL", 5), ("SIGKILL", 13), ("SIGTERM", 17)], loops=2),
}


def without_death(name):
    """The scenario that ``name`` must end like."""
    return max((base for base, one in SCENARIOS.items() if not one["kills"] and name.startswith(base)), key=len)


@pytest.fixture(scope="module")
def lived(tmp_path_factory, fork):
    """Return what is left of a scenario that was lived through; each is lived through once."""
    known = {}

    def live(name):
        if name not in known:
            folder = tmp_path_factory.mktemp("lives")
            own = {"PACELINE_OUTPUT": str(folder), "PACELINE_CHECKPOINT": str(folder / "checkpoint")}
            codes = []
            for life in range(len(SCENARIOS[name]["kills"]) + 1):
                command = [HERE / "lives.py", json.dumps(SCENARIOS[name]), life]
                codes.append(fork(command, env=os.environ | own | {"PYTHONPATH": str(INCLUDE)}).wait())
            seen = [(folder / f"seen-{life}").read_text().splitlines() for life in range(len(codes))]
            known[name] = SimpleNamespace(codes=codes, digest=(folder / "digest").read_text(), seen=seen)
        return known[name]

    return live


CODES = {"SIGTERM": 143, "SIGKILL": -9}


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_training_that_was_killed_ends_like_one_that_was_not(lived, name):
    expected_codes = [CODES[signal] for signal, _ in SCENARIOS[name]["kills"]] + [0]
    assert lived(name).codes == expected_codes
    assert lived(name).digest == lived(without_death(name)).digest is not None


def test_the_trainings_differ_from_each_other(lived):
    """Else equal weights would say nothing."""
    digests = [lived(name).digest for name, life in SCENARIOS.items() if not life["kills"]]
    assert len(set(digests)) == len(digests)


def test_after_sigterm_no_batch_is_done_twice_and_none_is_left_out(lived):
    once = lived("shuffle-10-workers-0").seen[0]
    first, second = lived("shuffle-10-workers-0-SIGTERM-4").seen
    assert len(first) == 4
    assert first + second == once


def test_after_sigkill_only_what_came_after_the_last_save_is_done_again(lived):
    once = lived("shuffle-10-workers-0").seen[0]
    first, second = lived("shuffle-10-workers-0-SIGKILL-5").seen
    assert first[:4] + second == once
    before, redone, last = lived(OLD_SAVE).seen
    assert before == once[:7]
    assert redone == once[7:11]
    assert last == once[7:]
