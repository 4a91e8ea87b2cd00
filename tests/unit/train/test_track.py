import io
import itertools
import json
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from paceline.train import Converged, Loop, report, stop_early, track, track_epochs
from paceline.train._source import BatchSource
from paceline.train.progress import parse_line


@pytest.fixture
def job(monkeypatch, tmp_path, capsys):
    """Simulate the environment of a job, and return a function that reads the progress lines written so far."""
    monkeypatch.setenv("PACELINE_OUTPUT", str(tmp_path))
    return lambda: [line for text in capsys.readouterr().out.splitlines() if (line := parse_line(text))]


def test_total_is_epochs_times_batches_in_an_epoch(recorder):
    """Equation (2) of DECOR-NN: the last batch of an epoch may be smaller and counts as a whole batch."""
    loader = DataLoader(TensorDataset(torch.arange(10)), batch_size=4)
    loop = Loop(loader, epochs=5, display=recorder)
    assert loop.total == len(loop) == 15
    list(loop)
    assert recorder.events[0] == ("start", 0, 15)
    assert recorder.events[-1] == ("finish", 15, 15)
    assert recorder.shown[-1].percent == 100.0
    assert recorder.shown[-1].device == "cpu"
    assert recorder.closed


def test_batch_counts_as_done_after_the_loop_body(recorder, clock):
    recorder.interval_s = 0.0
    for _ in (loop := Loop("abc", display=recorder)):
        assert recorder.shown[-1].done == loop.done
    assert [done for _, done, _ in recorder.events] == [0, 1, 2, 3, 3]


def test_loop_has_attributes_epoch_batch_and_epoch_end():
    loop = track("ab", epochs=2)
    seen = [(batch, loop.epoch, loop.batch, loop.epoch_end) for batch in loop]
    assert seen == [("a", 0, 0, False), ("b", 0, 1, True), ("a", 1, 0, False), ("b", 1, 1, True)]


def test_at_most_five_lines_are_written_a_second(job, clock):
    clock.step_s = 1e-5
    for _ in track(range(300_000)):
        report(loss=1.0)
    lines = job()
    assert [line.event for line in lines[:1] + lines[-1:]] == ["start", "finish"]
    moments_s = [line.monotonic_s for line in lines if line.event == "progress"]
    assert 13 <= len(moments_s) <= 15  # the loop runs for three seconds
    assert min(b - a for a, b in itertools.pairwise(moments_s)) >= 0.2 - 1e-9


def test_each_slow_batch_is_reported_on_one_line(job, clock):
    for _ in track(range(4)):
        clock.now_s += 30.0
    assert [line.done for line in job()] == [
        0,
        1,
        2,
        3,
        3,
        4,
        4,
    ]  # a line before the fourth batch, because a pause may follow


def test_progress_lines_forecast_the_validation(job, clock):
    """A validation batch takes 0.4 times as long as a training batch of the same size."""
    training, validation = DataLoader(range(40), batch_size=4), DataLoader(range(120), batch_size=8)
    for _ in track(training, epochs=2, validation=validation):
        clock.now_s += 0.5
    reported = [line.validation_s for line in job()]
    assert reported[0] is None, "no batch is done yet"
    assert set(reported[1:]) == {15 * 0.4 * 2 * 0.5}
    list(track(range(3)))
    assert {line.validation_s for line in job()} == {None}


def test_length_of_a_validation_loader_without_batch_sizes_is_used_for_the_forecast(job, clock):
    sampler = torch.utils.data.BatchSampler(torch.utils.data.SequentialSampler(range(40)), 4, drop_last=False)
    loader = DataLoader(range(40), batch_sampler=sampler)
    for _ in track(loader, validation=DataLoader(range(120), batch_size=8)):
        clock.now_s += 0.5
    assert job()[-1].validation_s == 15 * 0.4 * 0.5


def test_validations_of_unreported_epoch_ends_are_not_forecast(job, clock):
    for _ in track(range(2), epochs=4, validation=range(10)):
        clock.now_s += 0.3
    reported = [(line.epoch, line.validation_s) for line in job() if line.done]
    assert reported[0] == (0, 10 * 0.4 * 0.3)
    assert {seconds for epoch, seconds in reported if epoch} == {None}


@pytest.mark.parametrize(("tail", "reported"), [(None, [None] * 3), (30, [30.0] * 3), ("20%", [None, 5.0, 5.0])])
def test_declared_tail_is_reported(job, clock, tail, reported):
    for _ in track(range(50), tail=tail):
        clock.now_s += 0.5
    lines = [line for line in job() if line.event != "checkpoint"]
    assert [lines[0].tail_s, lines[1].tail_s, lines[-1].tail_s] == reported


def test_tail_is_declared_within_a_loop_over_epochs(job):
    for _ in track_epochs(2):
        list(track(range(3), tail=30))
    assert job()[-1].tail_s == 30


def test_validation_without_a_length_is_rejected(job):
    with pytest.raises(ValueError, match="validation: got 'generator', expected a loader with a length"):
        track(range(3), validation=(n for n in range(3)))


def test_progress_line_has_device_threads_and_both_clocks(job, clock):
    list(track(range(2), device=torch.device("cuda", 1), threads=torch.get_num_threads()))
    line = job()[-1]
    assert line.device == "cuda:1"
    assert line.threads == torch.get_num_threads()
    assert line.monotonic_s == clock.now_s
    assert line.wall_s > 1.7e9


@pytest.mark.parametrize(
    ("loader", "options", "message"),
    [
        ([], {}, "loader: got '0 batches', expected at least 1 batch"),
        (DataLoader(TensorDataset(torch.arange(3)), batch_size=4, drop_last=True), {}, "loader: got '0 batches'"),
        (iter([1, 2]), {}, "total: got None, expected the number of batches in all epochs"),
        (iter([1, 2]), {"total": 2, "epochs": 2}, "loader: got 'list_iterator', expected an iterable"),
        (5, {"total": 3}, "loader: got 5, expected a DataLoader or another iterable"),
        ("ab", {"epochs": 0}, "epochs: got 0, expected a whole number of at least 1"),
        ("ab", {"epochs": 1.5}, "epochs: got 1.5"),
        ("ab", {"epochs": True}, "epochs: got True"),
        ("ab", {"total": 0}, "total: got 0"),
        ("ab", {"threads": 0}, "threads: got 0"),
        ("ab", {"tail": -1}, "tail: got -1, expected seconds, or a share of an epoch as text, such as"),
        ("ab", {"tail": True}, "tail: got True"),
        ("ab", {"tail": "20"}, "tail: got '20'"),
        ("ab", {"tail": "nan%"}, "tail: got 'nan%'"),
    ],
)
def test_invalid_argument_is_rejected_before_the_first_batch(loader, options, message):
    with pytest.raises(ValueError, match=message):
        track(loader, **options)


def test_whole_numbers_of_numpy_are_accepted(job):
    numbers = np.array([2, 3, 1], np.int32)
    list(track(iter("abc"), total=numbers[1], threads=numbers[2]))
    loop = track("ab", epochs=numbers[0], until=Converged("loss", patience=numbers[2]))
    list(loop)
    assert [(line.done, line.total) for line in job() if line.event == "finish"] == [(3, 3), (4, 4)]
    assert json.dumps(loop.monitor.until.to_dict())


def test_empty_loader_without_length_is_rejected():
    with pytest.raises(ValueError, match="loader: got '0 batches in epoch 0'"):
        list(track(iter([]), total=5))


@pytest.mark.parametrize(("given", "actual"), [(10, 4), (2, 4), (4, 4)])
def test_estimated_total_is_corrected_at_the_end(recorder, given, actual):
    recorder.interval_s = 0.0
    list(Loop(iter(range(actual)), total=given, display=recorder))
    assert recorder.events[-1] == ("finish", actual, actual)
    assert all(done <= total for _, done, total in recorder.events)


class OverstatedLength:
    """A loader with too large a length, like an IterableDataset whose workers drop their last batches."""

    def __len__(self):
        return 10

    def __iter__(self):
        return iter(range(6))


def test_wrong_loader_length_is_corrected_after_one_epoch(recorder, clock):
    recorder.interval_s = 0.0
    list(Loop(OverstatedLength(), epochs=3, display=recorder))
    assert recorder.events[1][2] == 30
    assert recorder.events[8][2] == 18
    assert recorder.events[-1] == ("finish", 18, 18)


@pytest.mark.parametrize("breaks", [False, True])
def test_stop_early_ends_the_loop_after_this_batch(recorder, breaks):
    seen = []
    for batch in Loop(range(100), epochs=3, display=recorder):
        seen.append(batch)
        if batch == 6:
            stop_early()
            if breaks:
                break
    assert seen == list(range(7))
    assert recorder.events[-1] == ("finish", 7, 7)


@pytest.mark.parametrize("error", [None, KeyError("oops")], ids=["break", "error"])
def test_loop_left_early_reports_no_finish_and_allows_another_loop(recorder, error):
    def leave_loop():
        for batch in Loop(range(100), display=recorder):
            if batch == 6 and error:
                raise error
            if batch == 6:
                break

    with pytest.raises(KeyError) if error else nullcontext():
        leave_loop()
    assert "finish" not in [event for event, _, _ in recorder.events]
    assert list(track("ab")) == ["a", "b"]


def test_stop_early_outside_a_loop_is_rejected():
    with pytest.raises(RuntimeError, match="outside a `for"):
        stop_early()


def test_loop_cannot_be_iterated_over_twice():
    list(loop := track("ab"))
    with pytest.raises(RuntimeError, match="has already run"):
        iter(loop)


def test_nested_loop_reports_no_progress(recorder, capsys):
    inner = Loop("xy", display=(inner_recorder := type(recorder)()))
    pairs = [(a, b) for a in Loop("ab", display=recorder) for b in (inner if a == "a" else "xy")]
    assert pairs == [("a", "x"), ("a", "y"), ("b", "x"), ("b", "y")]
    assert inner_recorder.shown == []
    assert recorder.events[-1] == ("finish", 2, 2)
    assert "a nested track() loop runs as a plain loop" in capsys.readouterr().err


def test_second_loop_in_a_job_logs_a_warning(job, capsys):
    list(track("ab"))
    assert capsys.readouterr().err == ""
    list(track("ab"))
    assert "restarts progress at 0 %" in capsys.readouterr().err


def test_reported_values_appear_in_the_next_and_later_lines(recorder, clock):
    recorder.interval_s = 0.0
    for batch in Loop(range(3), display=recorder):
        if batch == 0:
            report(loss=0.5, accuracy=0.25)
        if batch == 1:
            report(loss=torch.tensor([0.125], requires_grad=True))
    assert [shown.loss for shown in recorder.shown[1:4]] == [0.5, 0.125, 0.125]
    assert [shown.metrics for shown in recorder.shown[1:4]] == [{"accuracy": 0.25}] * 3


def test_nan_loss_does_not_end_the_loop(job):
    for _ in track(range(2)):
        report(loss=float("nan"), mae=torch.tensor(float("inf")))
    assert [(line.event, line.loss, line.metrics) for line in job()][-1] == ("finish", None, {})


@pytest.mark.parametrize(
    ("value", "got"),
    [
        ("low", "'low'"),
        (None, "None"),
        (1j, "1j"),
        ([1.0], r"\[1.0\]"),
        (True, "True"),
        (np.bool_(True), r"(np\.)?True_?"),
        (torch.tensor(True), r"'a torch.bool tensor of shape \(\)'"),
        (torch.zeros(3), r"'a torch.float32 tensor of shape \(3,\)'"),
    ],
)
def test_report_rejects_values_that_are_not_one_number(value, got):
    with pytest.raises(ValueError, match=f"accuracy: got {got}, expected one number"):
        report(accuracy=value)


@pytest.mark.parametrize(("loop", "done"), [("", 1), ("abcd", 4)])
def test_report_outside_a_loop_is_a_line_with_the_last_progress(job, loop, done):
    if loop:
        list(track(loop))
    report(accuracy=0.93)
    line = job()[-1]
    assert (line.event, line.done, line.total, line.metrics) == ("report", done, done, {"accuracy": 0.93})


def test_reports_outside_a_loop_are_limited_and_the_last_is_kept(job, clock, session):
    clock.step_s = 1e-4
    for k in range(10_000):  # all reports together take one second
        report(mae=k)
    session.flush_report()
    values = [line.metrics["mae"] for line in job()]
    assert values[0] == 0
    assert values[-1] == 9999
    assert len(values) <= 7


def test_tensors_are_read_only_when_a_line_is_written(recorder):
    class CountingTensor(torch.Tensor):
        reads = 0

        def __float__(self):
            CountingTensor.reads += 1
            return 1.0

    value = torch.zeros(()).as_subclass(CountingTensor)
    for _ in Loop(range(1000), display=recorder):  # no time passes, so the loop writes only the start and finish lines
        report(loss=value)
    assert CountingTensor.reads <= 2


def test_tensor_may_change_after_its_report(recorder):
    total = torch.zeros(())
    for _ in Loop(range(3), display=recorder):
        total += 1
        report(total=total)
        total.zero_()
    assert recorder.shown[-1].metrics == {"total": 1}


def test_loop_runs_without_standard_output(monkeypatch, tmp_path):
    monkeypatch.setenv("PACELINE_OUTPUT", str(tmp_path))
    closed = io.StringIO()
    closed.close()
    for stream in (None, closed):
        monkeypatch.setattr(sys, "stdout", stream)
        assert list(track("ab")) == ["a", "b"]


class WorkerOfThree(BatchSource):
    """A source like a fleet's worker: other workers train nine batches for each of its three."""

    reads_epochs = False

    def passes(self, resume):
        yield self._batches()

    def _batches(self):
        for done in range(3):
            self._report(done)
            yield done
        self._report(3)

    def _report(self, done):
        self.progress = (done, 3)
        self._loop.set_server_progress(0, 1, 10 * done, 30, last=False)


def test_progress_of_a_worker_counts_a_batch_as_soon_as_it_is_done(session, recorder):
    session.role = WorkerOfThree()
    recorder.interval_s = 0.0
    loop = Loop(range(3), display=recorder)
    assert [(batch, loop.own_progress, loop.done) for batch in loop] == [
        (0, (0, 3), 0),
        (1, (1, 3), 10),
        (2, (2, 3), 20),
    ]
    assert recorder.events[1:] == [("progress", 1, 3), ("progress", 2, 3), ("progress", 3, 3), ("finish", 3, 3)]


@pytest.mark.parametrize("until", [None, Converged("accuracy")])
def test_lines_say_whether_a_metric_decides_when_training_ends(job, until):
    for _ in track("ab", epochs=3, until=until):
        report(accuracy=0.9)
    assert {line.may_end_early for line in job()} == {until is not None}


def test_each_batch_waits_for_the_share_of_the_gpu(recorder, gpu_share):
    for batch in Loop("ab", epochs=2, display=recorder):
        gpu_share.calls.append(batch)
    due = "end, other work is due"  # the first check
    epoch = ["begin", "a", "end", "begin", "b", "end", "leave"]
    assert gpu_share.calls == ["refresh", "begin", "a", due, *epoch[3:], *epoch, "close"]
    assert [progress.gpu_s for progress in recorder.shown[-1:]] == [1.25]


def test_threads_are_chosen_without_the_time_for_which_batches_wait_for_the_gpu(recorder, gpu_share, clock):
    gpu_share.waited_s = 400.0
    times = []
    loop = Loop(range(1), display=recorder)
    loop.threads.adapt = lambda done, now_s: times.append(now_s)
    list(loop)
    assert times[0] == clock.now_s - 400.0


def test_turn_on_the_gpu_ends_before_a_checkpoint_is_saved(recorder, gpu_share, session, clock):
    loop = Loop(range(3), display=recorder)
    for _ in loop:
        clock.now_s += 1.0
        session.checkpoint = SimpleNamespace(
            steps=None, next_save_s=0.0, interval_s=1e-9, save_s=0.1, save=lambda *_: gpu_share.calls.append("save")
        )
    before = [gpu_share.calls[place - 1] for place, call in enumerate(gpu_share.calls) if call == "save"]
    assert before[0] == "refresh"
    assert gpu_share.calls[gpu_share.calls.index("save") - 2] == "end, other work is due"


def test_validation_between_the_epochs_counts_for_the_share_of_the_gpu_and_the_loader_does_not(recorder, gpu_share):
    class Loader:
        def __len__(self):
            return 1

        def __iter__(self):
            gpu_share.calls.append("load")
            return iter("a")

    for _ in track_epochs(2):
        for batch in track(Loader()):
            gpu_share.calls.append(batch)
        gpu_share.calls.append("validate")
    calls = [call for call in gpu_share.calls if call not in ("refresh", "end", "end, other work is due")]
    assert calls == ["close", "load", "begin", "a", "leave, counts", "validate"] * 2 + ["close"]


def test_break_in_an_epoch_gives_back_the_turn_before_the_rest_of_the_body(gpu_share):
    for epoch in track_epochs(2):
        for batch in (loop := track("abc")):
            if batch == "b":
                break
        assert loop.done == 2 * (epoch + 1)
        gpu_share.calls.append("validate")
    for index, call in enumerate(gpu_share.calls):
        assert call != "validate" or gpu_share.calls[index - 1] == "leave, counts"


def test_loop_that_is_left_ends_its_turn_on_the_gpu(recorder, gpu_share):
    for _ in Loop("ab", display=recorder):
        break
    assert gpu_share.calls[-2:] == ["leave", "close"]
