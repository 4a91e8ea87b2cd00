"""The promise: a training that is killed and started again ends with the same weights, bit for bit, as one that is not.

Every life is a real process that gets a real signal; see ``lives.py`` for the training.
"""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.train.progress import parse_line

HERE = Path(__file__).parent
INCLUDE = Path(__file__).parents[3] / "include"


def scenario(loader, workers, samples, kills=(), every_s=0, **more):
    return {
        "loader": loader,
        "workers": workers,
        "samples": samples,
        "kills": list(kills),
        "every_s": every_s,
        "epochs": 3,
        **more,
    }


# Four batches in an epoch: 4 and 8 are ends of epochs, 12 is the last of all. With 10 samples an epoch's last batch is
# smaller, with 12 it is whole (a sampler is then at its end only when it is asked for one more).
IN_PROCESS = [
    ("shuffle", 10),
    ("shuffle", 12),
    ("generator", 12),
    ("replacement", 10),
    ("weighted", 10),
    ("stream", 10),
]
WITH_WORKERS = [("shuffle", 10), ("generator", 12), ("persistent", 10), ("stream", 10)]


def total(loader, workers):
    """A stream has no length; with two workers each reads all of it."""
    return {"total": 12 * max(workers, 1)} if loader == "stream" else {}


SCENARIOS = {}
for workers, loaders, kills in (
    (0, IN_PROCESS, [("SIGTERM", 1), ("SIGTERM", 4), ("SIGKILL", 5), ("SIGTERM", 12), ("SIGKILL", 12)]),
    (2, WITH_WORKERS, [("SIGTERM", 4), ("SIGKILL", 6)]),
):
    for loader, samples in loaders:
        name = f"{loader}-{samples}-workers-{workers}"
        more = total(loader, workers)
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
    for base in sorted((n for n, s in SCENARIOS.items() if not s["kills"]), key=len, reverse=True):
        if name.startswith(base):
            return base
    raise KeyError(name)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lives")
    (folder / "scenarios.json").write_text(json.dumps(SCENARIOS))
    command = [sys.executable, HERE / "lives.py", folder / "scenarios.json", folder / "results.json"]
    environment = {**os.environ, "PYTHONPATH": str(INCLUDE)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "results.json").read_text())


CODES = {"SIGTERM": 143, "SIGKILL": -9}


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_training_that_was_killed_ends_like_one_that_was_not(results, name):
    expected_codes = [CODES[signal] for signal, _ in SCENARIOS[name]["kills"]] + [0]
    assert results[name]["codes"] == expected_codes
    assert results[name]["digest"] == results[without_death(name)]["digest"] is not None


def test_the_trainings_differ_from_each_other(results):
    """Else equal weights would say nothing."""
    digests = {results[name]["digest"] for name, life in SCENARIOS.items() if not life["kills"]}
    assert len(digests) == len([name for name, life in SCENARIOS.items() if not life["kills"]])


def test_after_sigterm_no_batch_is_done_twice_and_none_is_left_out(results):
    once = results["shuffle-10-workers-0"]["seen"][0]
    first, second = results["shuffle-10-workers-0-SIGTERM-4"]["seen"]
    assert len(first) == 4
    assert first + second == once


def test_after_sigkill_only_what_came_after_the_last_save_is_done_again(results):
    once = results["shuffle-10-workers-0"]["seen"][0]
    first, second = results["shuffle-10-workers-0-SIGKILL-5"]["seen"]
    assert first[:4] + second == once
    before, redone, last = results[OLD_SAVE]["seen"]
    assert before == once[:7]
    assert redone == once[7:11]
    assert last == once[7:]


def test_a_restarted_job_begins_its_lines_where_it_goes_on(results):
    lines = results["shuffle-10-workers-0-SIGTERM-4"]["lines"][1]
    progress = [parsed for line in lines if (parsed := parse_line(line))]
    assert (progress[0].event, progress[0].done, progress[0].total) == ("start", 4, 12)
    assert (progress[-1].event, progress[-1].done, progress[-1].total) == ("finish", 12, 12)


TRAINING = """
import hashlib, time, torch
from torch.utils.data import DataLoader, TensorDataset
from paceline.train import checkpoint, output_dir, track

torch.manual_seed(0)
data = TensorDataset(torch.randn(400, 8), torch.randn(400, 1))
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Dropout(0.2), torch.nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters())
checkpoint(model=model, optimizer=optimizer)
for x, y in track(DataLoader(data, batch_size=8, shuffle=True), epochs=4, threads=1):
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
    time.sleep(0.01)  # a batch that takes its time, so that there is one to be killed in
torch.save(model.state_dict(), output_dir() / "model.pt")
"""


def weights(folder):
    import torch

    state = torch.load(folder / "model.pt", weights_only=True)
    return hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in state.values())).hexdigest()


def test_a_job_that_is_stopped_from_outside_goes_on_to_the_same_weights(tmp_path):
    """As ``docker stop`` does it: the default settings, a signal at any moment, a process started anew."""

    def start(folder):
        folder.mkdir(exist_ok=True)
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(INCLUDE),
            "PACELINE_OUTPUT": str(folder),
            "PACELINE_CHECKPOINT": str(folder / "checkpoint"),
        }
        command = [sys.executable, "-c", TRAINING]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)

    with start(tmp_path / "whole") as whole, start(tmp_path / "stopped") as stopped:
        for line in stopped.stdout:
            if parse_line(line).done >= 60:
                stopped.terminate()
                break
        stopped.stdout.read()
        assert stopped.wait(timeout=10) == 143
        whole.stdout.read()
        assert whole.wait(timeout=60) == 0
    with start(tmp_path / "stopped") as again:
        progress = [parse_line(line) for line in again.stdout]
        assert again.wait(timeout=60) == 0
    assert progress[0].event == "start"
    assert 60 <= progress[0].done < 200
    assert progress[-1].percent == 100.0
    assert weights(tmp_path / "stopped") == weights(tmp_path / "whole")
