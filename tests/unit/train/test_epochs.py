"""A loop over epochs with a loop over batches in its body."""

import numpy as np
import pytest
import torch

from paceline.train import Converged, Kept, checkpoint, report, stop_early, track, track_epochs
from paceline.train._source import BatchSource
from paceline.train.progress import parse_line


@pytest.fixture
def job(monkeypatch, tmp_path, capsys):
    """Simulate the environment of a job, and return a function that reads the progress lines written so far."""
    monkeypatch.setenv("PACELINE_OUTPUT", str(tmp_path))
    return lambda: [line for text in capsys.readouterr().out.splitlines() if (line := parse_line(text))]


def run(epochs, loaders=lambda epoch: "abc", body=lambda epoch, batch: None):
    """Train and return the pairs of epoch and batch."""
    seen = []
    for epoch in epochs:
        for batch in track(loaders(epoch)):
            seen.append((epoch, batch))
            body(epoch, batch)
    return seen


def test_epochs_are_counted_as_one_progress(job, clock):
    clock.step_s = 1.0
    assert run(track_epochs(range(1, 3)), lambda epoch: "ab") == [(1, "a"), (1, "b"), (2, "a"), (2, "b")]
    lines = job()
    assert (lines[0].event, lines[0].done, lines[0].total) == ("start", 0, 4)
    assert (lines[-1].event, lines[-1].done, lines[-1].total) == ("finish", 4, 4)
    assert [line.epoch for line in lines] == sorted(line.epoch for line in lines)


def test_loop_of_batches_has_the_attributes_of_the_whole_training():
    seen = []
    for _ in track_epochs(2):
        loop = track("ab")
        seen += [(loop.epoch, loop.batch, loop.done, loop.epoch_end) for _ in loop]
    assert seen == [(0, 0, 0, False), (0, 1, 1, True), (1, 0, 2, False), (1, 1, 3, True)]


def test_loaders_of_different_lengths_end_at_100_percent(job):
    run(track_epochs(3), lambda epoch: "abcdef"[: 2 * epoch + 1])
    last = job()[-1]
    assert (last.done, last.total, last.percent) == (9, 9, 100.0)


def test_iterators_and_streams_are_read_once_in_each_epoch():
    seen = []
    for epoch in track_epochs(2):
        seen += [*track(iter(range(2)), total=2), epoch]
    assert seen == [0, 1, 0, 0, 1, 1]


def test_samplers_receive_the_number_of_the_epoch():
    class Loader(list):
        def set_epoch(self, epoch):
            numbers.append(epoch)

    numbers = []
    run(track_epochs(range(1, 4)), lambda epoch: Loader("ab"))
    assert numbers == [1, 2, 3]


def test_break_ends_the_epoch_only():
    seen = []
    for epoch in track_epochs(2):
        for batch in track("abc"):
            seen.append((epoch, batch))
            if batch == "b":
                break
    assert seen == [(0, "a"), (0, "b"), (1, "a"), (1, "b")]


@pytest.mark.parametrize("within", ["batches", "epoch"])
def test_stop_early_ends_training_after_the_epoch(job, within):
    ended = []
    for epoch in track_epochs(5):
        for batch in track("ab"):
            if (epoch, batch, within) == (1, "a", "batches"):
                stop_early()
        if (epoch, within) == (1, "epoch"):
            stop_early()
        ended.append(epoch)
    assert ended == [0, 1]
    last = job()[-1]
    assert (last.event, last.percent) == ("finish", 100.0)


def test_metric_that_has_levelled_off_ends_training():
    trained = []
    for epoch in track_epochs(range(1, 51), until=Converged("accuracy", gain=0.01)):
        list(track("ab"))
        report(accuracy=0.9)
        trained.append(epoch)
    assert trained == list(range(1, len(trained) + 1))
    assert 2 <= len(trained) < 50


def test_validation_with_track_is_a_plain_loop(job):
    for _ in track_epochs(2):
        assert list(track("ab")) == ["a", "b"]
        assert list(track("xyz")) == ["x", "y", "z"]
    assert job()[-1].done == 4


@pytest.mark.parametrize("epochs", [np.int64(2), [np.int64(0), np.int64(1)]])
def test_whole_numbers_of_numpy_are_accepted(job, epochs):
    for _ in track_epochs(epochs):
        list(track("ab"))
    last = job()[-1]
    assert (last.done, last.epochs) == (4, 2)


@pytest.mark.parametrize("epochs", [0, -1, True, 2.5, "abc", [], None, [1.5]])
def test_invalid_number_of_epochs_is_named(epochs):
    with pytest.raises(ValueError, match=r"^epochs: got "):
        track_epochs(epochs)


@pytest.mark.parametrize(("field", "options"), [("epochs", {"epochs": 3}), ("until", {"until": Converged("loss")})])
def test_arguments_of_the_outer_loop_are_rejected_in_the_inner_loop(field, options):
    with pytest.raises(ValueError, match=rf"{field}: .*track_epochs"):
        [track("ab", **options) for _ in track_epochs(2)]


def test_epoch_without_batches_is_rejected():
    with pytest.raises(ValueError, match="no batches in epoch 0"):
        list(track_epochs(2))


def test_loop_over_batches_from_outside_is_rejected():
    outside = track("ab")
    with pytest.raises(RuntimeError, match="in the body of that loop"):
        [list(outside) for _ in track_epochs(2)]


def test_loop_over_epochs_within_a_loop_is_rejected():
    with pytest.raises(RuntimeError, match="within another loop"):
        [list(track_epochs(2)) for _ in track("ab")]


def test_loop_over_epochs_runs_once():
    run(epochs := track_epochs(1))
    with pytest.raises(RuntimeError, match="already run"):
        list(epochs)


def test_another_training_follows_after_an_error():
    with pytest.raises(KeyError):
        run(track_epochs(2), body=lambda epoch, batch: {}[batch])
    assert len(run(track_epochs(2))) == 6


class DividedBatches(BatchSource):
    """Batches whose position other processes determine, as on several devices or machines."""

    def passes(self, resume):
        yield iter(())


def test_divided_batches_need_one_loop(session):
    session.role = DividedBatches()
    with pytest.raises(ValueError, match=r"track\(loader, epochs=n\)"):
        run(track_epochs(1))


@pytest.mark.parametrize("helper", [False, True], ids=["inline", "function"])
def test_loop_over_range_is_rejected_if_a_restart_would_repeat_its_code(tmp_path, helper):
    model = torch.nn.Linear(1, 1)
    checkpoint(model=model, path=tmp_path)

    def train():
        return list(track("ab"))

    with pytest.raises(RuntimeError, match=r"test_epochs.py, line \d+: .*for epoch in track_epochs\(n\)"):
        [train() if helper else list(track("ab")) for _ in range(2)]


def test_loops_at_different_lines_are_different_trainings(tmp_path):
    checkpoint(model=torch.nn.Linear(1, 1), path=tmp_path)
    list(track("ab"))
    list(track("ab"))


def test_enumerate_continues_and_the_built_in_one_is_noticed(tmp_path, capsys):
    assert [number for number, _ in track("ab", epochs=2).enumerate(5)] == [5, 6, 7, 8]
    pairs = [(epoch, number) for epoch in track_epochs(2) for number, _ in track("ab").enumerate()]
    assert pairs == [(0, 0), (0, 1), (1, 0), (1, 1)]
    checkpoint(model=torch.nn.Linear(1, 1), path=tmp_path)
    capsys.readouterr()
    for number, batch in enumerate(track("ab", epochs=2)):
        assert "ab"[number % 2] == batch
    assert "counts from 0 after a restart" in capsys.readouterr().err


class Interrupted(Exception):
    """Stands for the end of the process."""


def train_until(place, folder, epochs, length):
    """Train, and end at the start of an epoch after the checkpoint of the previous one."""
    checkpoint(state=Kept(value=1), path=folder, every_s=0)
    for epoch in track_epochs(epochs):
        if epoch == place:
            raise Interrupted
        list(track(range(length(epoch))))


def test_fewer_epochs_than_in_the_checkpoint_are_rejected(tmp_path, restart_process):
    with pytest.raises(Interrupted):
        train_until(3, tmp_path, 5, lambda epoch: 2)
    restart_process()
    with pytest.raises(ValueError, match="epochs: got 2, expected at least 4 epochs"):
        train_until(None, tmp_path, 2, lambda epoch: 2)


def test_next_epoch_may_have_another_length_after_a_restart(tmp_path, restart_process, job):
    with pytest.raises(Interrupted):
        train_until(1, tmp_path, 3, lambda epoch: epoch + 2)
    restart_process()
    train_until(None, tmp_path, 3, lambda epoch: epoch + 2)
    assert job()[-1].done == 2 + 3 + 4


def test_iterator_that_is_held_beyond_its_epoch_counts_its_last_batch(job):
    for _ in track_epochs(2):
        batches = iter(track(range(3)))
        for _ in range(3):
            next(batches)
    assert job()[-1].done == 6


def test_loop_of_an_epoch_runs_once():
    for _ in track_epochs(1):
        loop = track("ab")
        list(loop)
        with pytest.raises(RuntimeError, match="has already run"):
            list(loop)


def shuffled_loader(seed):
    return torch.utils.data.DataLoader(range(6), shuffle=True, generator=torch.Generator().manual_seed(seed))


def train_three_times(folder, loop, until=None, seeds=(1, 2)):
    """Train with one loader, with another and with the first again, and return the order of the samples."""
    loaders = [shuffled_loader(seed) for seed in seeds]
    state = Kept(order=[])
    checkpoint(state=state, path=folder, every_s=0)
    for number, loader in enumerate([loaders[0], loaders[1], loaders[0]]):
        if number == until:
            raise Interrupted
        for _ in track_epochs(2) if loop == "track_epochs" else [0]:
            for sample in track(loader) if loop == "track_epochs" else track(loader, epochs=2):
                state.order.append(int(sample))
    return state.order


@pytest.mark.parametrize("loop", ["track", "track_epochs"])
@pytest.mark.parametrize("killed_before", [1, 2])
def test_loops_that_share_a_loader_continue_its_order(tmp_path, restart_process, loop, killed_before):
    with pytest.raises(Interrupted):
        train_three_times(tmp_path / "killed", loop, killed_before)
    restart_process()
    order = train_three_times(tmp_path / "killed", loop)
    restart_process()
    assert order == train_three_times(tmp_path / "undisturbed", loop)


def test_loaders_with_equal_generators_are_noticed_after_a_restart(tmp_path, restart_process, capsys):
    with pytest.raises(Interrupted):
        train_three_times(tmp_path, "track_epochs", 1, seeds=(1, 1))
    restart_process()
    assert "generator" not in capsys.readouterr().err
    train_three_times(tmp_path, "track_epochs", seeds=(1, 1))
    assert "the generator of a loader could not be restored" in capsys.readouterr().err


@pytest.mark.parametrize("loop", ["track", "track_epochs"])
@pytest.mark.parametrize("killed_at", [0, 1, 2])
def test_code_between_two_loops_has_its_effect_once(tmp_path, restart_process, loop, killed_at):
    def train(until=None):
        state = Kept(rates=[], rate=1.0)
        checkpoint(state=state, path=tmp_path, every_s=0)
        for _ in track(range(2)):
            state.rates.append(state.rate)
        state.rate /= 10
        for epoch in track_epochs(3) if loop == "track_epochs" else [0]:
            for batch in track("a" if loop == "track_epochs" else range(3)):
                if until == (epoch if batch == "a" else batch):
                    raise Interrupted
                state.rates.append(state.rate)
        return state.rates

    with pytest.raises(Interrupted):
        train(killed_at)
    restart_process()
    assert train() == [1.0, 1.0, 0.1, 0.1, 0.1]


@pytest.mark.parametrize("loop", ["track", "track_epochs"])
def test_metric_that_was_reported_before_a_restart_ends_training(tmp_path, restart_process, loop):
    def train(until=None):
        checkpoint(state=Kept(value=1), path=tmp_path, every_s=0)
        target = Converged("accuracy", target=0.8)
        epochs = track_epochs(5, until=target) if loop == "track_epochs" else [0]
        for _ in epochs:
            batches = track(range(4)) if loop == "track_epochs" else track(range(4), epochs=5, until=target)
            for batch in batches:
                if batch == 3 and until == batches.epoch:
                    raise Interrupted
                if batch == 1:
                    report(accuracy=0.5 + 0.1 * (batches.epoch + 1))
        return batches.epoch

    with pytest.raises(Interrupted):
        train(until=2)
    restart_process()
    assert train() == 3


def test_loops_in_zip_are_noticed(tmp_path, capsys):
    checkpoint(state=Kept(value=1), path=tmp_path)
    for _ in zip(track_epochs(2), "ab", strict=True):
        for _ in zip(track("ab"), "cd", strict=True):
            pass
    log = capsys.readouterr().err
    assert "zip(track_epochs(...), ...) reads its other parts from their start" in log
    assert "zip(track(...), ...) reads its other parts from their start" in log


def test_error_of_the_loader_that_is_caught_leaves_the_next_epochs_intact(tmp_path):
    class Loader(list):
        def __iter__(self):
            yield 0
            if epoch == 0:
                raise OSError
            yield 1

    state = Kept(seen=[])
    checkpoint(state=state, path=tmp_path)
    for epoch in track_epochs(3):
        try:
            for batch in track(Loader([0, 1])):
                state.seen.append((epoch, batch))
                if epoch == 2:
                    stop_early()
        except OSError:
            pass
    assert state.seen == [(0, 0), (1, 0), (1, 1), (2, 0)]
