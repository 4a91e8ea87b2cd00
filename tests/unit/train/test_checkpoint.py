import itertools
import os
import pickle
import signal
import subprocess
import zlib
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from paceline.train import Loop, checkpoint, report, track
from paceline.train.saving import checkpoint as checkpoint_module

from .machines import INCLUDE


class Counter:
    """A minimal object with a state that a checkpoint can save."""

    def __init__(self, value=0):
        self.value = value

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state["value"]


class LabelledTensor(torch.Tensor):
    """A kind of tensor that torch loads only if the file may run code."""


def file_names(folder):
    return sorted(path.name for path in Path(folder).iterdir() if path.name != "random-states.json")


def newest_file(folder):
    return Path(folder) / file_names(folder)[-1]


def train_three_batches(counter, **path):
    """Train for three batches, and return whether a checkpoint was restored."""
    restored = checkpoint(counter=counter, **path)
    for _ in track(range(3)):
        counter.value += 1
    return restored


def interrupt_training(folder, after, batches=10, epochs=1):
    """Train, and leave the loop so that the checkpoint contains ``after`` batches."""
    checkpoint(counter=(counter := Counter()), path=folder, every_s=0)
    for done, _ in enumerate(track(range(batches), epochs=epochs)):
        if done == after:
            break
        counter.value += 1


@pytest.fixture
def restart(restart_process, tmp_path):
    """Return a function that restarts the training script, by default with a counter, and returns the counter."""

    def restart_training(**parts):
        restart_process()
        counter = Counter()
        checkpoint(**(parts or {"counter": counter}), path=tmp_path)
        return counter

    return restart_training


def test_nothing_is_saved_without_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert train_three_batches(Counter()) is False
    assert file_names(tmp_path) == []


@pytest.mark.parametrize(("batches", "saved_at"), [(25, [10, 20]), (21, [10])])
def test_no_checkpoint_is_written_right_before_the_final_checkpoint(tmp_path, clock, recorder, batches, saved_at):
    """A checkpoint just before the end would delay the last batches, and a controller could no longer compensate."""
    recorder.interval_s = 3600  # every checkpoint is reported, even between two progress intervals
    checkpoint(counter=Counter(), path=tmp_path, every_s=10)
    for _ in Loop(range(batches), display=recorder):
        clock.now_s += 1.0
    assert [done for event, done, _ in recorder.events if event == "checkpoint"] == saved_at
    assert recorder.events[-1] == ("finish", batches, batches)
    assert len(file_names(tmp_path)) == 2  # the last periodic checkpoint and the final checkpoint


def test_checkpoints_continue_if_there_are_more_batches_than_estimated(tmp_path, clock, recorder):
    recorder.interval_s = 3600
    checkpoint(counter=Counter(), path=tmp_path, every_s=10)
    for _ in Loop(iter(range(45)), total=20, display=recorder):
        clock.now_s += 1.0
    assert [done for event, done, _ in recorder.events if event == "checkpoint"] == [10, 21, 31, 41]


@pytest.mark.parametrize("named_by", ["argument", "environment"])
def test_checkpoint_is_written_at_the_end_of_the_loop(tmp_path, monkeypatch, restart_process, named_by):
    folder = tmp_path / "made" / "as needed"
    monkeypatch.setenv("PACELINE_CHECKPOINT", str(folder if named_by == "environment" else tmp_path))
    path = {"path": folder} if named_by == "argument" else {}
    assert train_three_batches(Counter(), **path) is False
    assert len(file_names(folder)) == 1
    restart_process()
    again = Counter()
    assert train_three_batches(again, **path) is True
    assert again.value == 3


@pytest.mark.parametrize("epochs", [2, 1])
def test_restarted_script_skips_a_completed_loop(tmp_path, restart, recorder, capsys, epochs):
    interrupt_training(tmp_path, after=99, batches=5, epochs=2)
    restart()
    saved = file_names(tmp_path)
    assert list(Loop(range(5), epochs=epochs, display=recorder)) == []
    assert recorder.events == [("start", 10, 10), ("finish", 10, 10)]
    assert "nothing left to do" in capsys.readouterr().err
    assert file_names(tmp_path) == saved


def test_restarted_script_reports_the_batch_at_which_it_resumes(tmp_path, restart, recorder, capsys):
    interrupt_training(tmp_path, after=4)
    restart()
    assert list(Loop(range(10), display=recorder)) == [4, 5, 6, 7, 8, 9]
    assert recorder.events[0] == ("start", 4, 10)
    assert "4 of 10 batches were done" in capsys.readouterr().err


def test_reported_values_survive_a_restart(tmp_path, restart, recorder):
    checkpoint(counter=Counter(), path=tmp_path)
    for _ in track("ab"):
        report(loss=0.5, accuracy=0.75)
    restart()
    list(Loop("ab", display=recorder))
    assert (recorder.shown[-1].loss, recorder.shown[-1].metrics) == (0.5, {"accuracy": 0.75})


# When to save


def record_saves(clock, monkeypatch, folder, *, cost_s, batch_s, batches, every_s=None):
    moments = []

    def save(self, content):
        clock.now_s += cost_s
        moments.append(round(clock.now_s - 1000.0, 3))

    monkeypatch.setattr(checkpoint_module.Store, "save", save)
    checkpoint(counter=Counter(), path=folder, every_s=every_s)
    for _ in track(range(batches)):
        clock.now_s += batch_s
    return moments[:-1]  # the final checkpoint is not included


def test_progress_lines_report_the_duration_of_the_last_checkpoint(clock, monkeypatch, tmp_path, recorder):
    costs_s = iter([2.0, 3.0, 4.0])

    def save(self, content):
        clock.now_s += next(costs_s)

    monkeypatch.setattr(checkpoint_module.Store, "save", save)
    checkpoint(counter=Counter(), path=tmp_path, every_s=10)
    for _ in Loop(range(25), display=recorder):
        clock.now_s += 1.0
    reported = [(shown.event, shown.save_s) for shown in recorder.shown if shown.event != "progress"]
    assert reported[:3] == [("start", None), ("checkpoint", 2.0), ("checkpoint", 3.0)]
    assert reported[-1] == ("finish", 4.0)


@pytest.mark.parametrize("cost_s", [0.2, 0.5, 1.0])
def test_checkpoints_take_at_most_two_percent_of_the_time(clock, monkeypatch, tmp_path, cost_s):
    moments = record_saves(clock, monkeypatch, tmp_path, cost_s=cost_s, batch_s=0.5, batches=2000)
    assert len(moments) > 10
    assert cost_s * (len(moments) - 1) / (moments[-1] - moments[0]) <= 0.02


def test_time_between_checkpoints_is_at_most_a_minute_and_a_batch(clock, monkeypatch, tmp_path):
    moments = record_saves(clock, monkeypatch, tmp_path, cost_s=10, batch_s=7, batches=100)
    gaps = [b - a - 10 for a, b in itertools.pairwise(moments)]
    assert max(gaps) <= 67


@pytest.mark.parametrize(
    ("timing", "moments"),
    [
        ({"cost_s": 0, "batch_s": 1, "batches": 17}, [1, 6, 11, 16]),  # an early one, which foretells the last one
        ({"cost_s": 0.25, "batch_s": 0.5, "batches": 20, "every_s": 3}, [3.25, 6.5, 9.75]),
        ({"cost_s": 0.25, "batch_s": 0.5, "batches": 20, "every_s": np.int64(3)}, [3.25, 6.5, 9.75]),
    ],
)
def test_time_between_checkpoints_is_five_seconds_or_every_s(clock, monkeypatch, tmp_path, timing, moments):
    assert record_saves(clock, monkeypatch, tmp_path, **timing) == moments


# Invalid input


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({}, "checkpoint: got 'nothing', expected at least one object"),
        ({"model": object()}, r"model: got 'object', expected an object with state_dict\(\) and load_state_dict\(\)"),
        ({"model": None}, "model: got 'NoneType'"),
        ({"c": Counter(), "every_s": -1}, "every_s: got -1, expected a number of seconds, 0 or more"),
        ({"c": Counter(), "every_s": float("nan")}, "every_s: got nan"),
        ({"c": Counter(), "every_s": "5"}, "every_s: got '5'"),
        ({"c": Counter(), "path": "/proc/nowhere"}, "path: got '/proc/nowhere', expected a writable folder"),
        ({"c": Counter(Path("x"))}, "c: got a state with pathlib.*, expected tensors, numbers"),
        ({"c": Counter(lambda: 1)}, "c: got a state with .*, expected tensors, numbers"),
        ({"c": Counter(defaultdict(int))}, "c: got a state with collections.defaultdict, expected tensors, numbers"),
        ({"c": Counter(torch.ones(2).as_subclass(LabelledTensor))}, "c: got a state with .*LabelledTensor, expected"),
    ],
)
def test_invalid_checkpoint_argument_is_rejected(tmp_path, parts, message):
    with pytest.raises(ValueError, match=message):
        checkpoint(**{"path": tmp_path, **parts})


def test_lazy_layer_is_saved_after_its_first_batch(tmp_path, restart):
    checkpoint(model=(model := torch.nn.LazyLinear(2)), path=tmp_path)
    for _ in track(range(3)):
        model(torch.ones(1, 5))
    restart(model=(restored := torch.nn.LazyLinear(2)))
    assert torch.equal(restored.weight, model.weight)


def test_state_that_could_not_be_loaded_is_rejected_when_saved(tmp_path):
    checkpoint(counter=(counter := Counter()), path=tmp_path, every_s=0)
    with pytest.raises(ValueError, match="counter: got a state with pathlib"):  # noqa: PT012
        for _ in track("ab"):
            counter.value = Path("x")


def test_state_that_can_no_longer_be_loaded_keeps_the_last_usable_checkpoint(tmp_path, restart, capsys):
    checkpoint(counter=(counter := Counter()), path=tmp_path, every_s=0)
    for batch in track(range(10)):
        counter.value = np.float64(batch) if batch > 4 else batch
    message = "not saved, because it could not be restored (a restart resumes from the last checkpoint): counter: got"
    assert capsys.readouterr().err.count(message) == 1
    counter = restart()
    assert counter.value == 4
    for _ in track(range(10)):
        counter.value = np.float64(5)  # still no error, because there is a checkpoint to keep
    assert capsys.readouterr().err.count(message) == 1


def test_names_that_differ_from_those_in_the_checkpoint_are_rejected(tmp_path, restart):
    checkpoint(model=torch.nn.Linear(2, 2), path=tmp_path)
    list(track("a"))
    with pytest.raises(ValueError, match=r"checkpoint: got \['counter', 'model'\], expected \['model'\] as in"):
        restart(counter=Counter(), model=torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match=r"(?s)model: cannot load the state in .*: .*size mismatch"):
        restart(model=torch.nn.Linear(3, 2))


@pytest.mark.parametrize(
    ("before", "now", "message"),
    [
        (range(9), range(4), "batches in an epoch: got 4, expected 9 as in the checkpoint"),
        (iter(range(9)), iter(range(4)), "batches in an epoch: got 4, expected at least 6"),
    ],
    ids=["with a length", "without"],
)
def test_shorter_loader_than_in_the_checkpoint_is_rejected(tmp_path, restart, before, now, message):
    checkpoint(counter=Counter(), path=tmp_path, every_s=0)
    for batch in track(before, total=9):
        if batch == 6:
            break
    restart()
    with pytest.raises(ValueError, match=message):
        list(track(now, total=9))


# Inside the loop


def test_checkpoint_inside_the_loop_saves_and_logs_its_limit(tmp_path, restart, capsys):
    counter = Counter()
    for _ in track(range(4)):
        counter.value += 1
        checkpoint(counter=counter, path=tmp_path)
    assert capsys.readouterr().err.count("inside the loop saves but cannot restore") == 1
    assert restart().value == 4


def test_checkpoint_inside_the_loop_cannot_restore(tmp_path, restart_process):
    interrupt_training(tmp_path, after=2)
    restart_process()
    with pytest.raises(RuntimeError, match=r"too late to restore .*: call it before the `for"):  # noqa: PT012
        for _ in track(range(10)):
            checkpoint(counter=Counter(), path=tmp_path)


def test_checkpoint_call_inside_the_loop_may_repeat_the_call_before_the_loop(tmp_path, restart):
    interrupt_training(tmp_path, after=2)
    counter = restart()
    for _ in track(range(10)):
        counter.value += 1
        assert checkpoint(counter=counter, path=tmp_path) is False
    assert counter.value == 10


# Files


def test_second_call_for_the_same_folder_is_rejected_in_a_job(tmp_path, monkeypatch):
    monkeypatch.setenv("PACELINE_OUTPUT", str(tmp_path))
    model = torch.nn.Linear(1, 1)
    checkpoint(model=model, path=tmp_path / "first")
    assert len(list(track(range(3)))) == 3
    with pytest.raises(RuntimeError, match="would restore the end of the previous loop"):
        checkpoint(model=model, path=tmp_path / "first")
    checkpoint(model=model, path=tmp_path / "second")
    assert len(list(track(range(3)))) == 3


@pytest.mark.parametrize("folder", ["first", "second"])
def test_second_call_with_other_objects_is_rejected_in_a_job(tmp_path, monkeypatch, folder):
    monkeypatch.setenv("PACELINE_OUTPUT", str(tmp_path))
    counter = Counter()
    checkpoint(counter=counter, path=tmp_path / "first")
    with pytest.raises(RuntimeError, match="saves only the objects of the last call"):
        checkpoint(other=Counter(), path=tmp_path / folder)
    checkpoint(counter=counter, path=tmp_path / folder)
    assert len(list(track(range(3)))) == 3


def test_two_newest_files_are_kept(tmp_path):
    (tmp_path / ".checkpoint-77.tmp").write_bytes(b"of a killed process")
    (tmp_path / "notes.txt").write_text("not ours")
    interrupt_training(tmp_path, after=5)
    *kept, notes = file_names(tmp_path)
    assert notes == "notes.txt"
    assert [name[:17] for name in kept] == ["checkpoint-000004", "checkpoint-000005"]


def test_checkpoint_is_synced_to_disk_before_the_rename(tmp_path, monkeypatch):
    """Otherwise, a power cut could leave an empty file with a valid name. The test checks the order of the calls."""
    calls = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *args, name=name, real=real: calls.append(name) or real(*args))
    checkpoint(counter=Counter(), path=tmp_path)
    list(track("a"))
    assert calls == ["fsync", "replace", "fsync"]


@pytest.mark.parametrize("damage", ["cut short", "emptied", "one bit"])
def test_previous_file_is_restored_if_the_newest_file_is_damaged(tmp_path, restart, capsys, damage):
    interrupt_training(tmp_path, after=5)
    path = newest_file(tmp_path)
    content = bytearray(path.read_bytes())
    if damage == "one bit":
        content[len(content) // 2] ^= 1
    path.write_bytes({"cut short": content[:-100], "emptied": b""}.get(damage, content))
    assert restart().value == 4
    log = capsys.readouterr().err
    assert f"checkpoint {path} is unusable, trying the previous checkpoint: its content does not match" in log


class Malicious:
    """An object that executes code when it is unpickled."""

    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return Path.touch, (self.target,)


@pytest.mark.parametrize("how", ["torch.save", "pickle"])
def test_file_that_contains_code_is_rejected(tmp_path, restart, capsys, how):
    interrupt_training(tmp_path, after=5)
    victim, evil = tmp_path / "victim", tmp_path / "evil"
    if how == "pickle":
        evil.write_bytes(pickle.dumps({"format": 1, "parts": Malicious(victim)}))
    else:
        torch.save({"format": 1, "parts": {"counter": Malicious(victim)}}, evil)
    checksum = zlib.crc32(evil.read_bytes())
    evil.rename(tmp_path / f"checkpoint-000099-{checksum:08x}.pt")  # a file with a valid name and invalid content
    assert restart().value == 5
    assert not victim.exists()
    assert "checkpoint-000099" in capsys.readouterr().err


def test_loop_starts_from_the_beginning_without_a_usable_checkpoint(tmp_path, restart_process, capsys):
    interrupt_training(tmp_path, after=2)
    for path in tmp_path.iterdir():
        path.write_bytes(b"")
    restart_process()
    assert checkpoint(counter=Counter(), path=tmp_path) is False
    log = capsys.readouterr().err
    assert log.count("is unusable") == 2
    assert "no usable checkpoint in" in log
    assert list(track(range(3))) == [0, 1, 2]


def test_loop_continues_if_the_disk_is_full(tmp_path, fork):
    code = """
import os, resource, sys, torch
from paceline.train import checkpoint, track
model = torch.nn.Linear(10, 10)
checkpoint(model=model, every_s=0)
for batch in track(range(6)):
    if batch == 2:  # from here on, files are limited to 1 kB
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
    if batch == 4:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        print(sorted(os.listdir(sys.argv[1])), file=sys.stderr)
print("trained to the end")
"""
    environment = {"PYTHONPATH": str(INCLUDE), "PACELINE_CHECKPOINT": str(tmp_path)}
    process = fork(["-c", code, tmp_path], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    lines = process.stdout.read().splitlines()
    assert process.wait() == 0, lines
    assert "trained to the end" in lines
    log = [line for line in lines if "cannot write a checkpoint" in line]
    assert len(log) == 2
    assert "File too large" in log[0]
    (kept,) = [line for line in lines if line.startswith("[")]
    assert kept.count("checkpoint-") == 2
    assert ".tmp" not in kept
    assert len(file_names(tmp_path)) == 2


# SIGTERM


def test_sigterm_without_a_checkpoint_ends_the_process_immediately():
    seen = []
    with pytest.raises(SystemExit, match="143"):  # noqa: PT012
        for batch in track("ab"):
            signal.raise_signal(signal.SIGTERM)
            seen.append(batch)
    assert seen == []


def test_sigterm_handler_of_the_training_code_is_kept(tmp_path):
    caught = []
    before = signal.signal(signal.SIGTERM, lambda *_: caught.append(1))
    try:
        checkpoint(counter=Counter(), path=tmp_path)
        for _ in track("ab"):
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert caught == [1, 1]


def test_sigterm_during_the_last_save_ends_the_process_after_the_save(tmp_path, monkeypatch):
    real_save = checkpoint_module.Store.save

    def save(self, content):
        signal.raise_signal(signal.SIGTERM)
        return real_save(self, content)

    monkeypatch.setattr(checkpoint_module.Store, "save", save)
    checkpoint(counter=Counter(), path=tmp_path)
    with pytest.raises(SystemExit, match="143"):
        list(track("a"))
    assert len(file_names(tmp_path)) == 1


@pytest.mark.parametrize("saved", [True, False])
def test_sigterm_handler_is_restored_after_a_loop_outside_a_job(tmp_path, saved):
    if saved:
        checkpoint(counter=Counter(), path=tmp_path)
    list(track("a"))
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_sigterm_is_handled_after_the_loop_in_a_job(monkeypatch, tmp_path):
    """The first process of a container ignores SIGTERM unless the process has a handler."""
    monkeypatch.setenv("PACELINE_OUTPUT", str(tmp_path))
    list(track("a"))
    with pytest.raises(SystemExit, match="143"):
        signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize("when", ["during its batch", "while it is closed"])
def test_sigterm_is_not_lost_when_a_loop_is_left(tmp_path, fork, when):
    code = f"""
import os, signal, time
from paceline.train import _session, checkpoint, track
when = {when!r}
class C:
    state_dict = dict
    load_state_dict = print
class Closing(_session.Session):
    def restore_sigterm(self):
        os.kill(os.getpid(), signal.SIGTERM)
if when == "while it is closed":
    _session.current.__class__ = Closing
checkpoint(c=C())
for _ in track("ab"):
    if when == "during its batch":
        os.kill(os.getpid(), signal.SIGTERM)
    break
time.sleep(300)
"""
    environment = {"PYTHONPATH": str(INCLUDE), "PACELINE_CHECKPOINT": str(tmp_path), "PACELINE_OUTPUT": str(tmp_path)}
    assert fork(["-c", code], env=environment).wait() == 143


def test_sigterm_ends_loader_workers(tmp_path):
    checkpoint(counter=Counter(), path=tmp_path)
    loader = DataLoader(list(range(8)), num_workers=1, persistent_workers=True)
    for _ in track(loader):
        pass
    (worker,) = loader._iterator._workers
    worker.terminate()
    worker.join(timeout=60)
    assert worker.exitcode in (0, -signal.SIGTERM)
