"""Data-parallel training in processes that join and leave has the same result as training in one process.

The processes (see ``parallel.py``), their sockets and torch's collectives are real.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import zlib
from collections import Counter
from contextlib import nullcontext
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from paceline.train import _session, checkpoint, data_parallel, track
from paceline.train.parallel import _lead as lead_module
from paceline.train.parallel._lead import Lead
from paceline.train.parallel._replica import Replica
from paceline.train.parallel._watchdog import Watchdog
from paceline.train.parallel._wire import Wire
from paceline.train.parameter_server._vector import StateVector
from paceline.train.parameter_server.worker import TrainingWorker
from paceline.train.progress import parse_line
from paceline.train.saving.data import snapshot

from .machines import HERE, INCLUDE, LIMIT_S

ROOT = HERE.parents[2]


SHORT = {"_INTERVAL_S": 0.05, "_FIRST_MESSAGE_S": 0.2, "_STOPPED_LIMIT_S": 1}


def during(number, at):
    return {"signal": number, "at": at}


class FinishedJob:
    """The results of a training job whose number of processes followed a plan."""

    def __init__(self, folder, output, errors):
        self.errors = errors
        self.progress = [parsed for line in output.splitlines() if (parsed := parse_line(line))]
        self.text = [line for line in output.splitlines() if not parse_line(line)]
        self.seen = [line.split(" ", 2) for file in sorted((folder / "seen").iterdir()) for line in file.open()]
        self.processes = len(list((folder / "seen").iterdir()))
        model = folder / "output" / "model.pt"
        self.weights = torch.load(model, weights_only=True) if model.exists() else None

    @property
    def resizes(self):
        return [(line.done, line.devices_in_force) for line in self.progress if line.event == "resized"]

    @property
    def trained_counts(self):
        """For each epoch, how often the job trained on each sample."""
        counts = [Counter() for _ in range(4)]
        for epoch, share, indices in self.seen:
            counts[int(epoch)].update(json.loads(indices) if float(share) > 0 else [])
        return counts


@pytest.fixture(scope="module")
def run_plan(tmp_path_factory, fork):
    def run_script(folder=None, wanted=None, workers=0, ends_with=0, **plan):
        folder = folder or tmp_path_factory.mktemp("parallel")
        for name in ("seen", "output", "tmp"):
            (folder / name).mkdir(exist_ok=True)
        plan |= {"wanted": wanted or {}, "workers": workers, "seen": str(folder / "seen"), "fork": fork.args[0]}
        (folder / "plan.json").write_text(json.dumps(plan))
        (folder / "control.json").write_text('{"devices": 1}')
        environment = {
            **os.environ,
            "PYTHONPATH": f"{INCLUDE}:{ROOT}",
            "PACELINE_OUTPUT": str(folder / "output"),
            "PACELINE_CHECKPOINT": str(folder / "checkpoint"),
            "PACELINE_CONTROL": str(folder / "control.json"),
            "TMPDIR": str(folder / "tmp"),
        }
        output, errors = folder / "log.txt", folder / "errors.txt"
        with output.open("w") as out, errors.open("w") as err:
            command = [HERE / "parallel.py", folder / "plan.json"]
            process = fork(command, env=environment, stdout=out, stderr=err, process_group=0)
            assert process.wait(LIMIT_S) == ends_with, errors.read_text()
        assert not list((folder / "tmp").glob("paceline-*")), "temporary folders are left"
        return FinishedJob(folder, output.read_text(), errors.read_text())

    return run_script


@pytest.fixture(scope="module")
def single_process(run_plan):
    return run_plan()


def weights_are_close(weights, others):
    return all(torch.allclose(weights[name], others[name], rtol=1e-9, atol=1e-9) for name in weights)


def test_joining_and_leaving_processes_do_not_change_the_result(run_plan, single_process):
    resized = run_plan(wanted={"2": 3, "9": 1, "16": 2})
    assert resized.resizes == [(3, 3), (10, 1), (17, 2)]
    assert resized.progress[0].resize_s is None
    assert all(line.resize_s is not None for line in resized.progress if line.event == "resized")
    assert resized.processes == 4  # the lead, two followers that join and leave, and a follower that joins later
    assert weights_are_close(resized.weights, single_process.weights)
    assert resized.trained_counts == single_process.trained_counts == [Counter(range(50))] * 4
    assert resized.text == ["ended on 28"]  # only the lead executes the code after the loop
    assert re.findall("data_parallel: (.*)", resized.errors) == [
        "3 processes train from batch 3",
        "1 process trains from batch 10",
        "2 processes train from batch 17",
    ]


def test_processes_join_each_of_two_loops(run_plan):
    twice = run_plan(wanted={"2": 2}, loops=2)
    assert twice.resizes == [(3, 2), (3, 2)]
    assert weights_are_close(twice.weights, run_plan(loops=2).weights)
    assert twice.text == ["ended on 28"]


@pytest.mark.parametrize("variant", ["evaluation mode", "accumulation", "unused layer", "unfrozen layer"])
def test_gradients_are_those_of_a_single_process(run_plan, variant):
    # Of the 7 batches of an epoch, the last has 2 samples. The group changes between the accumulated batches.
    resized = run_plan(wanted={"2": 3, "9": 1, "16": 2}, variant=variant)
    assert resized.resizes == [(3, 3), (10, 1), (17, 2)]
    assert weights_are_close(resized.weights, run_plan(variant=variant).weights)


def test_no_process_trains_a_single_sample_with_batch_normalisation(run_plan):
    resized = run_plan(wanted={"2": 3}, variant="batch normalisation")
    assert resized.trained_counts == [Counter(range(50))] * 4
    assert all(len(json.loads(indices)) > 1 for _, _, indices in resized.seen)


def test_join_timeout_does_not_limit_a_compilation_or_validation(run_plan):
    stopped = run_plan(wanted={"2": 2}, variant="timeout")
    assert stopped.text == ["an exchange may take 0:30:00", "ended on 4"]


def test_new_process_waits_for_a_device_whose_process_is_still_ending(model, monkeypatch, tmp_path):
    lead = Lead(Replica(model), None)
    lead._folder = tmp_path
    monkeypatch.setattr(lead_module, "_gpu_count", lambda: 2)
    monkeypatch.setattr(
        lead_module, "FollowerProcess", lambda device, folder: SimpleNamespace(device=device, ready=True)
    )
    ending = SimpleNamespace(device=1, has_ended=False)
    lead._dismissed = [ending]
    lead._start_process()
    assert lead._starting == []
    ending.has_ended = True
    lead._start_process()
    assert [process.device for process in lead._starting] == [1]


def test_other_processes_compute_no_batch_before_the_share_of_the_gpus_allows_it(model):
    """Otherwise, they would occupy their GPUs while they wait for the gradients of the first process."""
    calls = []
    lead = Lead(Replica(model), None)
    lead._loop = SimpleNamespace(batch=0, done=0, begin_batch=lambda: calls.append("begin"))
    lead._slices = SimpleNamespace(take=lambda batch: SimpleNamespace(before=0, checksum=1, weight=0.5, samples=2))
    wire = SimpleNamespace(start_batch=lambda *_: calls.append("start"))
    lead._active = [SimpleNamespace(connection=lambda: nullcontext(wire))] * 2
    batches = lead._batches(iter("ab"))
    assert [next(batches), calls] == ["a", ["begin", "start", "start"]]


def test_training_continues_without_a_process_that_cannot_be_started(model, monkeypatch, capfd):
    def refuse(device, folder):
        attempts.append(device)
        raise BlockingIOError(11, "Resource temporarily unavailable")  # fork, at the job's limit on processes

    attempts = []
    monkeypatch.setattr(lead_module, "_gpu_count", lambda: 0)
    monkeypatch.setattr(lead_module, "FollowerProcess", refuse)
    lead = Lead(Replica(model), None)
    assert not lead.adjust_processes(3)
    assert not lead.adjust_processes(3)
    assert len(attempts) == 2, "each missing process is started once for each allocation"
    assert "cannot be started ([Errno 11]" in capfd.readouterr().err
    try:
        raise RuntimeError("training ends before its loop begins")
    except RuntimeError:
        lead.close()


def test_new_process_runs_the_script_if_the_lead_has_changed_its_folder(tmp_path):
    (tmp_path / "train.py").write_text("""
import os, sys, tempfile
from pathlib import Path
from paceline.train.parallel._process import FollowerProcess
if "PACELINE_LEAD_SOCKET" in os.environ:
    sys.exit(7)
os.chdir(tempfile.gettempdir())
process = FollowerProcess(1, Path(sys.argv[1]))
process.ready = True
sys.exit(process.end())
""")
    environment = {**os.environ, "PYTHONPATH": str(INCLUDE)}
    command = [sys.executable, "train.py", str(tmp_path)]
    assert subprocess.run(command, cwd=tmp_path, env=environment, timeout=LIMIT_S).returncode == 7


def test_worker_of_a_fleet_trains_in_one_process(model, monkeypatch, session, capsys):
    monkeypatch.setenv("PACELINE_SERVER", "127.0.0.1:1")
    replica = data_parallel(model)
    assert "data_parallel() has no effect in a worker of a fleet" in capsys.readouterr().err
    assert isinstance(session.batch_source(0), TrainingWorker)
    assert torch.equal(StateVector({"model": replica}).read(), StateVector({"model": model}).read())


def test_sampler_whose_order_the_training_changes_is_rejected_at_a_join(run_plan):
    broken = run_plan(wanted={"2": 2}, variant="reads the training", ends_with=1)
    assert "the sampler yields other samples for the batches of this epoch that are done" in broken.errors


def test_sampler_with_another_order_in_each_process_is_rejected(run_plan):
    broken = run_plan(wanted={"2": 2}, variant="own order", ends_with=1)
    assert "the sampler yields different samples in this process and in the first process" in broken.errors


def test_batch_order_is_the_same_with_persistent_loader_workers(run_plan):
    resized = run_plan(wanted={"9": 2}, workers=2)
    assert resized.resizes == [(10, 2)]
    assert weights_are_close(resized.weights, run_plan(workers=2).weights)
    assert resized.trained_counts == [Counter(range(50))] * 4


def test_persistent_loader_workers_end_before_the_loader_waits_for_them_at_exit(run_plan):
    ended = run_plan(wanted={"9": 2}, workers=2, variant="exit")
    assert ended.errors.count("[False, False]") == 2


def test_any_number_of_processes_can_resume_the_checkpoint_saved_at_sigterm(run_plan, single_process, tmp_path):
    stopped = run_plan(tmp_path, wanted={"2": 2}, killed="lead's group", killed_at=11, ends_with=143)
    assert stopped.resizes == [(3, 2)]
    resumed = run_plan(tmp_path)
    assert resumed.progress[0].event == "start"
    assert resumed.progress[0].done in (11, 12)  # the lead may be one batch ahead of the followers
    assert weights_are_close(resumed.weights, single_process.weights)


@pytest.mark.parametrize("death", [{"killed": "follower", "killed_at": 9}, {"signalled": during("SIGKILL", "batch 9")}])
def test_death_of_a_process_ends_the_job_with_an_error_that_names_it(run_plan, death):
    broken = run_plan(wanted={"2": 2}, ends_with=1, **death)
    message = "paceline: data_parallel: the process on device 1 was killed (SIGKILL; out of memory?)"
    assert broken.errors.splitlines()[-1] == message


def test_stopped_process_is_named_and_ends_the_job_with_an_error(run_plan):
    limits = {**SHORT, "_STOPPED_LIMIT_S": 3}
    broken = run_plan(wanted={"2": 2}, signalled=during("SIGSTOP", "batch 9"), limits=limits, ends_with=1)
    assert "paceline: training waits for the process on device 1 (stopped by SIGSTOP), for " in broken.errors
    message = "the process on device 1 was stopped (SIGSTOP) for 3 s and then killed"
    assert broken.errors.splitlines()[-1] == f"paceline: data_parallel: {message}"


@pytest.mark.parametrize("number", ["SIGSTOP", "SIGKILL"])
@pytest.mark.parametrize("at", ["the script", "the loop"])
def test_training_continues_without_a_process_that_stops_before_it_joins(run_plan, single_process, number, at):
    single = run_plan(wanted={"2": 2}, signalled=during(number, at), limits=SHORT)
    assert "training continues without it" in single.errors
    assert ("stopped (SIGSTOP) for 1 s" if number == "SIGSTOP" else "device 1 ") in single.errors
    assert single.progress[-1].devices_in_force == 1
    assert weights_are_close(single.weights, single_process.weights)


def test_process_that_training_waits_for_is_named(run_plan, single_process):
    waited = run_plan(wanted={"2": 3}, late=2, limits={**SHORT, "_GROWTH": 1.5})
    assert "training waits for the process on device 2, for " in waited.errors
    assert weights_are_close(waited.weights, single_process.weights)


def test_pause_of_the_job_in_an_exchange_does_not_end_it(run_plan, single_process):
    limits = {**SHORT, "_NEVER_COMING_LIMIT_S": 1}
    paused = run_plan(wanted={"2": 2}, variant="pause", late=1, limits=limits, pause_s=2)
    assert "training waits for the process on device 1, for " in paused.errors
    assert weights_are_close(paused.weights, single_process.weights)


def test_limits_count_looks_and_not_the_time_of_a_pause(model):
    ended = []
    process = Mock(device=1, ready=False, is_stopped=True, has_ended=False, kill=ended.append)
    replica = Replica(model)
    replica.arrivals = Mock(waiting_since_s=-1e9, missing=lambda: [1], never_coming=lambda: [1])
    watchdog = Watchdog(replica, lambda: [process], list, own_start_s=0)
    watchdog.close()
    for _ in range(59):
        watchdog.look()
    assert ended == []
    watchdog.look()
    assert ended == ["was stopped (SIGSTOP) for 60 s and then killed"]
    ended.clear()
    process.is_stopped = False
    watchdog.look()
    assert ended == ["made other exchanges than the others and was killed"]


def test_process_that_starts_is_named_and_ended_after_the_limit(model, capfd):
    ended = []
    process = Mock(device=1, ready=False, kill=ended.append)
    watchdog = Watchdog(Replica(model), list, list, own_start_s=100)
    watchdog.close()
    for elapsed_s in (8, 9.5, 10.5, 29.5, 999, 1000):
        watchdog._watch_start(process, elapsed_s)
    assert re.findall(r"starting for (\d+) s", capfd.readouterr().err) == ["10", "30", "999"]
    assert ended == ["did not reach the loop within 1000 s and was killed"]


@pytest.mark.parametrize(
    ("variant", "cause"),
    [
        ("error in the loop", "ArithmeticError: the cause"),
        ("caught error in the loop", "paceline: data_parallel: the process on device 1 left the loop at line "),
        ("break in the loop", "paceline: data_parallel: the process on device 1 left the loop at line "),
        ("error in the data set", "TypeError: 'NoneType' object is not callable"),
    ],
)
@pytest.mark.parametrize("devices", [2, 3])
def test_error_in_a_process_is_reported(run_plan, variant, cause, devices):
    broken = run_plan(wanted={"2": devices}, variant=variant, ends_with=1)
    assert cause in broken.errors
    assert re.search(r"line \d+ of .*tests/unit/train/parallel.py", broken.errors.splitlines()[-1])


def test_job_continues_without_a_process_that_fails_to_start(run_plan, single_process):
    single = run_plan(wanted={"2": 2}, followers_fail=True)
    assert weights_are_close(single.weights, single_process.weights)
    assert [line.devices_in_force for line in single.progress] == [1] * len(single.progress)


@pytest.mark.parametrize("stop_after", [12, 14])  # in an epoch, and at its end
def test_stop_early_in_a_single_process_is_named(run_plan, stop_after):
    broken = run_plan(wanted={"2": 2}, variant="stop in a follower", stop_after=stop_after, ends_with=1)
    expected = f"stop_early() was called in the process on device 1 after {stop_after} batches, but not in the first"
    assert expected in broken.errors


@pytest.mark.parametrize(("variant", "wanted"), [("never used", {}), ("undeclared", {"2": 2})])
def test_parameter_without_a_gradient_is_named(run_plan, variant, wanted):
    broken = run_plan(variant=variant, wanted=wanted, ends_with=1)
    assert "find_unused_parameters: got False, expected True in data_parallel()" in broken.errors
    assert "1.weight, 1.bias got no gradient" in broken.errors


@pytest.mark.parametrize("variant", [None, "stop in the lead"])
def test_stop_early_in_all_processes_or_the_first_ends_the_job(run_plan, variant):
    stopped = run_plan(wanted={"2": 2}, stop_after=12, variant=variant)
    assert stopped.text == ["ended on 12"]
    assert (stopped.progress[-1].event, stopped.progress[-1].done, stopped.progress[-1].total) == ("finish", 12, 12)


@pytest.fixture
def model():
    return torch.nn.Linear(2, 1)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(3))


class ScalingLoader(DataLoader):
    def __iter__(self):
        return (batch * 10 for batch in super().__iter__())


@pytest.mark.parametrize(
    ("loader", "message"),
    [
        (ScalingLoader(torch.ones(3)), "loader: got 'ScalingLoader, which has its own __iter__', expected a torch"),
        ([1, 2, 3], "loader: got 'list', expected a torch DataLoader with a batch size"),
        (DataLoader(Stream(), batch_size=1), "loader: got 'a DataLoader over Stream with batch_size=1', expected"),
        (
            DataLoader(TensorDataset(torch.ones(3)), batch_size=None),
            "over TensorDataset with batch_size=None', expected",
        ),
    ],
)
def test_indivisible_loader_is_rejected_before_the_first_batch(model, loader, message):
    checkpoint(model=data_parallel(model))
    with pytest.raises(ValueError, match=message):
        next(iter(track(loader, total=3)))


def test_data_parallel_requires_a_checkpoint(model):
    data_parallel(model)
    with pytest.raises(ValueError, match=r"checkpoint: got 'nothing', expected checkpoint\(model=model, optimizer="):
        next(iter(track(DataLoader(TensorDataset(torch.ones(3))))))


def test_data_parallel_rejects_invalid_models_and_late_calls(model, session):
    with pytest.raises(ValueError, match=r"model: got 'int', expected a torch\.nn\.Module"):
        data_parallel(3)
    with pytest.raises(ValueError, match=r"model: got 'ReLU', expected a torch\.nn\.Module with parameters to train"):
        data_parallel(torch.nn.ReLU())
    with pytest.raises(ValueError, match="max_processes: got 0, expected a whole number of at least 1"):
        data_parallel(model, max_processes=0)
    data_parallel(model)
    with pytest.raises(RuntimeError, match="must be called once, before"):
        data_parallel(model)
    session.role = None
    loop = iter(track([1, 2]))
    next(loop)
    with pytest.raises(RuntimeError, match="must be called once, before"):
        data_parallel(model)


def test_data_parallel_is_rejected_under_torchrun(model, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RuntimeError, match=r"data_parallel\(\) and torchrun both start processes"):
        data_parallel(model)


def test_epoch_may_end_before_the_decision_that_follows_a_change_of_processes(model, session, monkeypatch):
    checkpoint(model=data_parallel(model))
    monkeypatch.setattr(session.role, "adjust_processes", lambda target: True)
    loader = DataLoader(TensorDataset(torch.ones(3)))
    assert len(list(track(loader, epochs=2))) == 6  # the manual clock does not advance, so no decision follows


def test_process_that_has_reached_an_earlier_loop_does_not_join(model, session, tmp_path):
    loader = DataLoader(TensorDataset(torch.ones(3)))
    replica = data_parallel(model)
    checkpoint(model=replica, path=tmp_path / "first")
    assert len(list(track(loader))) == 3
    checkpoint(model=replica, path=tmp_path / "second")
    batches = iter(track(loader))
    next(batches)
    here, there = map(Wire, socket.socketpair())
    process = SimpleNamespace(wire=here, ready=False, is_stopped=False, end=lambda: 0)
    session.role._starting = [process]
    there.send({"loop": 1})
    session.role.adjust_processes(2)
    assert not process.ready
    assert there.is_readable()
    assert there.receive() == {"command": "skip"}
    there.send({"loop": 2})
    session.role.adjust_processes(2)
    assert process.ready


def test_follower_receives_the_forecast_of_the_lead(model, monkeypatch, tmp_path):
    here, there = socket.socketpair()
    monkeypatch.setenv("PACELINE_LEAD_SOCKET", str(there.detach()))
    checkpoint(model=data_parallel(model))
    loader = DataLoader(TensorDataset(torch.ones(3)))
    position = {"epoch": 1, "batch": 0, "done": 3, "epochs": 2, "total": 6}
    group = {"file": str(tmp_path / "group"), "rank": 0, "world": 1, "joining": False, "accumulates": False}
    now = snapshot(loader)
    lead = Wire(here)
    lead.send({"command": "open", "position": position, "start": now, "now": now, "group": group})
    lead.start_batch(zlib.crc32(b"[0]"))
    lead.send({"command": "leave"})
    loop = track(loader, epochs=9)
    seen = [(loop.epoch, loop.done, loop.epochs, loop.total) for _ in until_dismissed(loop)]
    assert seen == [(1, 3, 2, 6)]


def until_dismissed(loop):
    with pytest.raises(SystemExit):
        yield from loop


def test_replica_of_a_single_process_is_the_model_itself(model):
    wrapped = data_parallel(model)
    x = torch.ones(1, 2)
    assert torch.equal(wrapped(x), model(x))
    assert wrapped.state_dict().keys() == model.state_dict().keys() == {"weight", "bias"}
    assert list(wrapped.parameters()) == list(model.parameters())
    with wrapped.no_sync():
        wrapped(x).sum().backward()
    assert model.weight.grad is not None
    assert _session.current.role.devices == 1


def test_follower_ignores_sigterm_and_ends_with_the_lead(monkeypatch, model):
    here, there = socket.socketpair()
    monkeypatch.setenv("PACELINE_LEAD_SOCKET", str(there.detach()))
    data_parallel(model)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    here.close()
    with pytest.raises(SystemExit) as ended:  # the follower ends when the lead ends
        next(iter(track(DataLoader(TensorDataset(torch.ones(3))))))
    assert ended.value.code == 0
