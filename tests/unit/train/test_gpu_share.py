"""Jobs keep their shares of a simulated GPU, alone and together."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.train.pacing import _gpu_timer
from paceline.train.pacing._gpu_timer import CudaTimer, HostTimer, choose_timer
from paceline.train.pacing._gpu_turns import GpuTurns
from paceline.train.pacing.gpu_share import GpuShare
from paceline.train.pacing.share import CpuShare

from .machines import INCLUDE
from .simulated_gpu import SimulatedGpu, SimulatedTime

BOUND_BY = {"gpu": {"gpu_s": 0.033, "host_s": 0.002}, "host": {"gpu_s": 0.003, "host_s": 0.01}}


@pytest.fixture
def time() -> SimulatedTime:
    return SimulatedTime()


@pytest.fixture
def gpu(tmp_path: Path, time: SimulatedTime) -> SimulatedGpu:
    return SimulatedGpu(tmp_path, time)


@pytest.mark.parametrize("bound_by", BOUND_BY)
@pytest.mark.parametrize("share", [0.05, 0.5, 0.95])
def test_job_alone_trains_at_its_share_of_the_full_speed(gpu, time, share, bound_by):
    job = gpu.job("alone", share, **BOUND_BY[bound_by])
    time.run(lambda: job.train(10.0))
    assert job.speed(0.0, 10.0) == pytest.approx(share, abs=0.01)


@pytest.mark.parametrize(("shares", "gpu_s"), [((0.5, 0.5), 0.02), ((0.2, 0.7), 0.056), ((0.3, 0.3, 0.3), 0.056)])
def test_jobs_that_share_a_gpu_keep_their_shares(gpu, time, shares, gpu_s):
    jobs = [gpu.job(f"job-{number}", share, gpu_s=gpu_s) for number, share in enumerate(shares)]
    time.run(*(lambda job=job: job.train(10.0) for job in jobs))
    speeds = [job.speed(0.0, 10.0) for job in jobs]
    assert speeds == pytest.approx(shares, abs=0.01)


@pytest.mark.parametrize("shares", [(0.5, 0.5), (0.2, 0.7)])
def test_job_with_short_batches_keeps_its_share_beside_one_with_long_batches(gpu, time, shares):
    long, short = gpu.job("long", shares[0], gpu_s=1.0), gpu.job("short", shares[1])
    time.run(lambda: long.train(40.0), lambda: short.train(40.0))
    assert [long.speed(0.0, 40.0), short.speed(0.0, 40.0)] == pytest.approx(shares, abs=0.03)


def test_job_that_has_needed_no_gpu_does_not_catch_up(gpu, time):
    job = gpu.job("job", 0.5)

    def train() -> None:
        job.train(5.0)
        time.sleep(10.0)
        job.train(20.0)

    time.run(train)
    assert job.speed(15.0, 20.0) == pytest.approx(0.55, abs=0.02)


@pytest.mark.parametrize(("loads_s", "gpu_s"), [(1.0, 0.05), (1.0, 0.002), (0.01, 0.002)])
def test_job_that_waits_for_its_data_takes_no_turn_meanwhile(gpu, time, loads_s, gpu_s):
    slow, fast = gpu.job("slow", 0.5, gpu_s=gpu_s, host_s=0.001), gpu.job("fast", 0.5)

    def train_slowly() -> None:
        while time.now_s < 10.0:
            time.sleep(loads_s)
            slow.train_batch(gpu_s)
        slow.share.close()

    time.run(train_slowly, lambda: fast.train(10.0))
    assert fast.speed(0.0, 10.0) == pytest.approx(0.5, abs=0.02)
    alone = 10.0 / (loads_s + gpu_s)
    assert len(slow.began_s) >= 0.3 * alone, "each batch may wait for a turn of the other job"


@pytest.mark.parametrize("share", [0.9, 1.0])
def test_new_share_is_in_force_within_a_turn(gpu, time, share):
    job = gpu.job("job", 0.01)

    def raise_share() -> None:
        time.sleep(5.5)
        job.set_share(share)

    time.run(lambda: job.train(10.0), raise_share)
    assert job.speed(0.0, 5.5) < 0.02
    assert job.speed(5.7, 10.0) == pytest.approx(share, abs=0.02)


def test_whole_gpu_is_neither_measured_nor_locked_until_the_share_is_smaller(gpu, time):
    job = gpu.job("job", 1.0)

    def reduce_share() -> None:
        time.sleep(5.0)
        assert (job.timed, job.share.used_s, job.turns._held) == (0, None, [])
        job.set_share(0.5)

    time.run(lambda: job.train(10.0), reduce_share)
    assert job.speed(0.0, 5.0) == pytest.approx(1.0, abs=0.04)
    assert job.speed(6.0, 10.0) == pytest.approx(0.5, abs=0.02)
    assert job.share.used_s == pytest.approx(2.5, abs=0.3)
    assert job.share.waited_s == pytest.approx(2.2, abs=0.3)


def test_validation_in_the_loop_counts(gpu, time):
    job = gpu.job("job", 0.5)

    def train() -> None:
        job.train_batch(3.0)
        job.train(10.0)

    time.run(train)
    assert job.began_s[1] == pytest.approx(6.0, abs=0.1)


@pytest.mark.parametrize(("counts", "began_s"), [(True, 8.0), (False, 4.0)])
def test_code_between_two_epochs_counts_if_the_training_code_has_such_a_loop(gpu, time, counts, began_s):
    job = gpu.job("job", 0.5)

    def train() -> None:
        job.train_batch(0.05)
        job.share.leave(counts=counts)
        time.sleep(4.0)
        job.train_batch(0.05)
        job.share.close()

    time.run(train)
    assert job.began_s[1] == pytest.approx(began_s, abs=0.2)


def test_job_does_not_wait_for_one_that_validates_for_long_and_takes_turns_again_after_it(gpu, time, capfd):
    validating, other = gpu.job("validating", 0.5), gpu.job("other", 0.3)

    def validate() -> None:
        validating.share.begin()
        time.sleep(10.0)  # on the host
        validating.share.end(due=True)
        validating.train(20.0)

    time.run(validate, lambda: other.train(20.0))
    assert other.speed(0.0, 10.0) == pytest.approx(0.3, abs=0.02)
    assert not other.turns._beside
    assert "another job keeps its turn on the GPU for more than 2 s" in capfd.readouterr().err


def test_process_that_has_to_end_waits_for_nothing(gpu, time):
    job = gpu.job("job", 0.01)

    def train() -> None:
        job.train_batch(1.0)
        job.ending = True
        job.train_batch(1.0)

    time.run(train)
    assert job.began_s[1] < 1.1


def test_killed_process_frees_its_turn(tmp_path):
    code = (
        "import sys, time; from paceline.train.pacing._gpu_turns import GpuTurns; turns = GpuTurns(sys.argv[1:]); "
        "turns.take(); print('taken', flush=True); time.sleep(600)"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(INCLUDE)},
        stdout=subprocess.PIPE,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"taken\n"
        turns = GpuTurns([str(tmp_path)])
        assert not turns._try()
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        assert turns._try()
        turns.release()
    finally:
        holder.kill()
        holder.wait()


def test_turn_ends_although_a_process_that_was_forked_meanwhile_has_its_file_open(tmp_path):
    turns, others = GpuTurns([str(tmp_path)]), GpuTurns([str(tmp_path)])
    turns.take()
    inherited = os.dup(turns._held[0])
    try:
        turns.release()
        assert others._try()
    finally:
        others.release()
        os.close(inherited)


def test_turn_ends_if_the_gpu_reports_an_error_of_the_training_code(gpu, time, monkeypatch):
    job = gpu.job("job", 0.5)

    def fail() -> float:
        raise RuntimeError("CUDA error")

    def train() -> None:
        job.share.begin()
        monkeypatch.setattr(job, "wait", fail)
        with pytest.raises(RuntimeError, match="CUDA error"):
            job.share.leave()
        assert job.turns._held == []
        job.share.leave()

    time.run(train)


def test_turns_on_two_gpus_are_taken_in_the_same_order(tmp_path, time):
    paths = [tmp_path / name for name in ("gpu-0", "gpu-1")]
    for path in paths:
        path.touch()
    both = [
        GpuTurns([str(path) for path in order], clock=time.clock, sleep=time.sleep) for order in (paths, paths[::-1])
    ]
    taken: list[tuple[int, float]] = []

    def take_turns(number: int) -> None:
        for _ in range(10):
            both[number].take()
            taken.append((number, time.now_s))
            time.sleep(0.05)
            both[number].release()
            time.sleep(0.001)

    time.run(lambda: take_turns(0), lambda: take_turns(1))
    assert len(taken) == 20
    assert time.now_s < 1.2, "no turn has waited for long"
    assert [b - a > 0.0499 for (_, a), (_, b) in itertools.pairwise(taken)] == [True] * 19


def test_job_without_a_lock_trains_at_its_share(gpu, time, capfd):
    gpu.turn.rmdir()
    job = gpu.job("job", 0.5)
    time.run(lambda: job.train(10.0))
    assert job.speed(0.0, 10.0) == pytest.approx(0.5, abs=0.02)
    assert capfd.readouterr().err.count("the turns on the GPU cannot be taken") == 1


def test_gpus_and_allocation_are_those_of_the_environment(tmp_path):
    control = tmp_path / "control.json"
    control.write_text('{"devices": 0.5}')
    environ = {"PACELINE_CONTROL": str(control), "PACELINE_GPU_TURNS": f"{tmp_path}/0:{tmp_path}/1"}
    share = GpuShare.from_environment(lambda: 0.0, lambda: False, environ)
    assert share is not None
    assert (share._turns.count, share._share) == (2, 0.25)
    assert GpuShare.from_environment(lambda: 0.0, lambda: False, {}) is None


@pytest.mark.parametrize("devices", [0.1, 1.5, 2.0])
def test_cores_of_a_job_do_not_depend_on_its_share_of_the_gpus(tmp_path, devices):
    control = tmp_path / "control.json"
    control.write_text(f'{{"devices": {devices}}}')
    share = CpuShare(
        {"PACELINE_CONTROL": str(control), "PACELINE_GPU_TURNS": "/a:/b", "PACELINE_CORES_PER_DEVICE": "4"}
    )
    assert (share.read(), share.read_devices()) == (8.0, 2.0)


def test_rank_of_torchrun_is_rejected(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match=r"WORLD_SIZE: got 2, expected one process, or data_parallel\(\), for a share"):
        GpuShare.from_environment(lambda: 0.0, lambda: False, {"PACELINE_GPU_TURNS": "/a"})


class Event:
    """A CUDA event on a stream that computes for 30 ms after the host."""

    clock_s = 0.0

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self._at_s = Event.clock_s + 0.03

    def elapsed_time(self, end: Event) -> float:
        return 1000 * (end._at_s - self._at_s)


def test_cuda_time_is_that_between_pairs_of_events(monkeypatch):
    waits = []
    cuda: Any = SimpleNamespace(
        Event=Event, synchronize=lambda: waits.append(Event.clock_s), is_initialized=lambda: bool(waits)
    )
    monkeypatch.setitem(_gpu_timer.sys.modules, "torch", SimpleNamespace(cuda=cuda))
    first = choose_timer(None)
    assert isinstance(first, HostTimer)
    assert choose_timer(first) is first
    timer = CudaTimer()
    for begin_s, end_s in ((1.0, 1.25), (2.0, 2.5)):
        Event.clock_s = begin_s
        timer.begin()
        Event.clock_s = end_s
        timer.end()
    assert waits == []
    assert timer.wait() == pytest.approx(0.75)
    assert waits == [2.5]
    assert timer.wait() == 0
    assert isinstance(choose_timer(first), CudaTimer)


def test_host_time_is_that_of_the_clock():
    now = [1.0]
    timer = HostTimer(lambda: now[0])
    timer.begin()
    now[0] = 3.5
    timer.end()
    assert [timer.wait(), timer.wait()] == [2.5, 0.0]
