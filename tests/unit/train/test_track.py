import io
import itertools
import sys
from contextlib import nullcontext

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from paceline.train import Loop, report, stop_early, track
from paceline.train.progress import parse_line


@pytest.fixture
def job(monkeypatch, tmp_path, capsys):
    """Run as in a job; return what reads the progress lines so far."""
    monkeypatch.setenv("PACELINE_OUTPUT", str(tmp_path))
    return lambda: [line for text in capsys.readouterr().out.splitlines() if (line := parse_line(text))]


def test_total_is_epochs_times_batches_in_an_epoch(recorder):
    """Equation (2); the last batch of an epoch may be smaller and counts as well."""
    loader = DataLoader(TensorDataset(torch.arange(10)), batch_size=4)
    loop = Loop(loader, epochs=5, display=recorder)
    assert loop.total == len(loop) == 15
    list(loop)
    assert recorder.events[0] == ("start", 0, 15)
    assert recorder.events[-1] == ("finish", 15, 15)
    assert recorder.shown[-1].percent == 100.0
    assert recorder.shown[-1].device == "cpu"
    assert recorder.closed


def test_a_batch_counts_when_the_body_is_done_with_it(recorder, clock):
    recorder.interval_s = 0.0
    for _ in (loop := Loop("abc", display=recorder)):
        assert recorder.shown[-1].done == loop.done
    assert [done for _, done, _ in recorder.events] == [0, 1, 2, 3, 3]


def test_a_loop_knows_its_epoch_and_where_it_ends():
    loop = track("ab", epochs=2)
    seen = [(batch, loop.epoch, loop.batch, loop.epoch_end) for batch in loop]
    assert seen == [("a", 0, 0, False), ("b", 0, 1, True), ("a", 1, 0, False), ("b", 1, 1, True)]


def test_lines_leave_at_most_five_times_a_second_at_100_000_batches_a_second(job, clock):
    clock.step_s = 1e-5
    for _ in track(range(300_000)):
        report(loss=1.0)
    lines = job()
    assert [line.event for line in lines[:1] + lines[-1:]] == ["start", "finish"]
    moments_s = [line.monotonic_s for line in lines if line.event == "progress"]
    assert 13 <= len(moments_s) <= 15  # three seconds
    assert min(b - a for a, b in itertools.pairwise(moments_s)) >= 0.2 - 1e-9


def test_slow_batches_have_a_line_each(job, clock):
    for _ in track(range(4)):
        clock.now_s += 30.0
    assert [line.done for line in job()] == [0, 1, 2, 3, 3, 4, 4]  # the fourth begins, and may be followed by a pause


def test_progress_lines_forecast_the_validation(job, clock):
    """A forward-only batch costs 0.4 training batches, in proportion to its size."""
    training, validation = DataLoader(range(40), batch_size=4), DataLoader(range(120), batch_size=8)
    for _ in track(training, epochs=2, validation=validation):
        clock.now_s += 0.5
    told = [line.validation_s for line in job()]
    assert told[0] is None, "no batch is done yet"
    assert set(told[1:]) == {15 * 0.4 * 2 * 0.5}
    list(track(range(3)))
    assert {line.validation_s for line in job()} == {None}


def test_a_validation_counts_by_its_length_where_batch_sizes_are_unknown(job, clock):
    sampler = torch.utils.data.BatchSampler(torch.utils.data.SequentialSampler(range(40)), 4, drop_last=False)
    loader = DataLoader(range(40), batch_sampler=sampler)
    for _ in track(loader, validation=DataLoader(range(120), batch_size=8)):
        clock.now_s += 0.5
    assert job()[-1].validation_s == 15 * 0.4 * 0.5


def test_validations_of_epochs_whose_end_is_not_reported_are_not_forecast(job, clock):
    for _ in track(range(2), epochs=4, validation=range(10)):
        clock.now_s += 0.3
    told = [(line.epoch, line.validation_s) for line in job() if line.done]
    assert told[0] == (0, 10 * 0.4 * 0.3)
    assert {seconds for epoch, seconds in told if epoch} == {None}


def test_a_validation_without_a_length_is_rejected(job):
    with pytest.raises(ValueError, match="validation: got 'generator', expected a loader that has a length"):
        track(range(3), validation=(n for n in range(3)))


def test_a_line_tells_the_device_the_threads_and_both_clocks(job, clock):
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
        (iter([1, 2]), {"total": 2, "epochs": 2}, "loader: got 'list_iterator', expected something to iterate"),
        (5, {"total": 3}, "loader: got 5, expected a DataLoader or anything else to iterate over"),
        ("ab", {"epochs": 0}, "epochs: got 0, expected a whole number of at least 1"),
        ("ab", {"epochs": 1.5}, "epochs: got 1.5"),
        ("ab", {"epochs": True}, "epochs: got True"),
        ("ab", {"total": 0}, "total: got 0"),
        ("ab", {"threads": 0}, "threads: got 0"),
    ],
)
def test_bad_input_is_refused_before_the_first_batch(loader, options, message):
    with pytest.raises(ValueError, match=message):
        track(loader, **options)


def test_a_loader_without_length_that_gives_nothing_is_an_error():
    with pytest.raises(ValueError, match="loader: got '0 batches in epoch 0'"):
        list(track(iter([]), total=5))


@pytest.mark.parametrize(("given", "there_are"), [(10, 4), (2, 4), (4, 4)])
def test_a_total_that_was_only_a_guess_is_put_right_at_the_end(recorder, given, there_are):
    recorder.interval_s = 0.0
    list(Loop(iter(range(there_are)), total=given, display=recorder))
    assert recorder.events[-1] == ("finish", there_are, there_are)
    assert all(done <= total for _, done, total in recorder.events)


class TellsTooMuch:
    """As an IterableDataset does whose workers drop their last batches."""

    def __len__(self):
        return 10

    def __iter__(self):
        return iter(range(6))


def test_a_loader_that_told_a_wrong_length_is_believed_for_one_epoch_only(recorder, clock):
    recorder.interval_s = 0.0
    list(Loop(TellsTooMuch(), epochs=3, display=recorder))
    assert recorder.events[1][2] == 30
    assert recorder.events[8][2] == 18
    assert recorder.events[-1] == ("finish", 18, 18)


@pytest.mark.parametrize("leaves", [False, True])
def test_stop_early_ends_after_this_batch_and_the_last_line_says_so(recorder, leaves):
    seen = []
    for batch in Loop(range(100), epochs=3, display=recorder):
        seen.append(batch)
        if batch == 6:
            stop_early()
            if leaves:
                break
    assert seen == list(range(7))
    assert recorder.events[-1] == ("finish", 7, 7)


@pytest.mark.parametrize("error", [None, KeyError("oops")], ids=["break", "error"])
def test_a_loop_that_is_left_is_no_finish_and_frees_the_way_for_another(recorder, error):
    def train():
        for batch in Loop(range(100), display=recorder):
            if batch == 6 and error:
                raise error
            if batch == 6:
                break

    with pytest.raises(KeyError) if error else nullcontext():
        train()
    assert "finish" not in [event for event, _, _ in recorder.events]
    assert list(track("ab")) == ["a", "b"]


def test_stop_early_outside_of_a_loop_is_an_error():
    with pytest.raises(RuntimeError, match="none is under way"):
        stop_early()


def test_a_loop_is_iterated_over_once():
    list(loop := track("ab"))
    with pytest.raises(RuntimeError, match="iterated over before"):
        iter(loop)


def test_a_loop_inside_of_a_loop_is_silent(recorder, capsys):
    inner = Loop("xy", display=(inner_recorder := type(recorder)()))
    pairs = [(a, b) for a in Loop("ab", display=recorder) for b in (inner if a == "a" else "xy")]
    assert pairs == [("a", "x"), ("a", "y"), ("b", "x"), ("b", "y")]
    assert inner_recorder.shown == []
    assert recorder.events[-1] == ("finish", 2, 2)
    assert "inside of another is a plain loop" in capsys.readouterr().err


def test_a_second_loop_in_a_job_starts_again_and_is_told_off(job, capsys):
    list(track("ab"))
    assert capsys.readouterr().err == ""
    list(track("ab"))
    assert "begins from 0 % again" in capsys.readouterr().err


def test_reports_leave_with_the_next_line_and_stay(recorder, clock):
    recorder.interval_s = 0.0
    for batch in Loop(range(3), display=recorder):
        if batch == 0:
            report(loss=0.5, accuracy=0.25)
        if batch == 1:
            report(loss=torch.tensor([0.125], requires_grad=True))
    assert [shown.loss for shown in recorder.shown[1:4]] == [0.5, 0.125, 0.125]
    assert [shown.metrics for shown in recorder.shown[1:4]] == [{"accuracy": 0.25}] * 3


def test_a_loss_that_is_nan_does_not_end_the_training(job):
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
        (torch.zeros(3), r"'a torch.float32 tensor of shape \(3,\)'"),
    ],
)
def test_what_is_not_one_number_is_refused_where_it_is_reported(value, got):
    with pytest.raises(ValueError, match=f"accuracy: got {got}, expected one number"):
        report(accuracy=value)


@pytest.mark.parametrize(("loop", "done"), [("", 1), ("abcd", 4)])
def test_a_report_outside_of_a_loop_is_a_line_of_its_own_with_how_far_the_last_loop_was(job, loop, done):
    if loop:
        list(track(loop))
    report(accuracy=0.93)
    line = job()[-1]
    assert (line.event, line.done, line.total, line.metrics) == ("report", done, done, {"accuracy": 0.93})


def test_many_reports_without_a_loop_keep_to_the_rate_and_the_last_is_not_lost(job, clock, session):
    clock.step_s = 1e-4
    for k in range(10_000):  # one second
        report(mae=k)
    session.flush_report()
    values = [line.metrics["mae"] for line in job()]
    assert values[0] == 0
    assert values[-1] == 9999
    assert len(values) <= 7


def test_an_accelerator_is_not_waited_for_until_a_line_is_written(recorder):
    class Slow(torch.Tensor):
        reads = 0

        def __float__(self):
            Slow.reads += 1
            return 1.0

    value = torch.zeros(()).as_subclass(Slow)
    for _ in Loop(range(1000), display=recorder):  # the clock stands still: start and finish only
        report(loss=value)
    assert Slow.reads <= 2


def test_a_job_without_standard_output_trains_all_the_same(monkeypatch, tmp_path):
    monkeypatch.setenv("PACELINE_OUTPUT", str(tmp_path))
    closed = io.StringIO()
    closed.close()
    for stream in (None, closed):
        monkeypatch.setattr(sys, "stdout", stream)
        assert list(track("ab")) == ["a", "b"]
