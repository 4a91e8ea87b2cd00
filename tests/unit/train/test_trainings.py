import lightgbm
import numpy as np
import pytest
from sklearn.model_selection import GridSearchCV

from paceline.train import Kept, _trainings, checkpoint, expect_trainings, stop_early, track, track_epochs
from paceline.train.adapters.lightgbm import PacelineCallback


@pytest.fixture
def expect(monkeypatch, recorder):
    """Return ``expect_trainings`` with a display that records."""
    monkeypatch.setattr(_trainings, "choose_display", lambda: recorder)
    return expect_trainings


def train_one(clock, batches=4, batch_s=1.0):
    for _ in track(range(batches)):
        clock.now_s += batch_s


def test_trainings_are_parts_of_one_progress(expect, recorder, clock):
    expect(3)
    for batches in (4, 2, 1):
        train_one(clock, batches)
        clock.now_s += 5  # an evaluation
    assert [(event, done) for event, done, _ in recorder.events] == [
        ("start", 0),
        *(("progress", done) for done in (250, 500, 750, 1000)),
        ("epoch_end", 1000),
        *(("progress", done) for done in (1000, 1500, 2000)),
        ("epoch_end", 2000),
        *(("progress", done) for done in (2000, 3000)),
        ("finish", 3000),
    ]
    assert {total for _, _, total in recorder.events} == {3000}
    assert [progress.epoch for progress in recorder.shown] == [0] * 6 + [1] * 4 + [2] * 3
    assert recorder.closed


def test_trainings_count_by_their_costs(expect, recorder, clock):
    expect([100, 500])
    for batches in (1, 5):
        train_one(clock, batches)
    assert [done for event, done, _ in recorder.events if event == "progress"][:4] == [333, 333, 667, 1000]
    assert recorder.events[-1] == ("finish", 2000, 2000)


def test_training_that_stops_early_counts_as_done(expect, recorder, clock):
    expect(2)
    for _ in track(range(100)):
        clock.now_s += 1
        stop_early()
    assert recorder.events[-1] == ("epoch_end", 1000, 2000)


def test_short_trainings_write_few_lines(expect, recorder, clock):
    expect(1000)
    for _ in range(1000):
        train_one(clock, batches=1, batch_s=0.001)
    assert 5 <= len(recorder.shown) <= 20
    assert {event for event, _, _ in recorder.events[1:-1]} == {"progress"}


def test_further_training_is_reported(expect, recorder, clock, capsys):
    expect(1)
    for _ in range(3):
        train_one(clock)
    log = capsys.readouterr().err
    assert "got training 2, expected 1:" in log
    assert "got training 3, expected 1:" in log
    assert recorder.events[-1] == ("finish", 3000, 3000)


def test_restart_begins_with_the_training_that_was_interrupted(expect, recorder, clock, restart_process, tmp_path):
    def run(kill_at=None):
        expect(3)
        for training in range(3):
            checkpoint(path=tmp_path / str(training), every_s=0, state=Kept(training=training))
            for epoch in track_epochs(2):
                for batch in track(range(2)):
                    clock.now_s += 1
                    if (training, epoch, batch) == kill_at:
                        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(kill_at=(1, 1, 0))
    restart_process()
    recorder.shown.clear()
    run()
    assert recorder.events[:2] == [("start", 1500, 3000), ("checkpoint", 1750, 3000)]
    restart_process()
    recorder.shown.clear()
    run()
    assert recorder.events == [("start", 3000, 3000), ("finish", 3000, 3000)]


def test_search_of_a_library_is_one_progress(expect, recorder, tmp_path, restart_process):
    features = np.random.default_rng(1).normal(size=(90, 2))

    def search():
        model = lightgbm.LGBMRegressor(n_estimators=5, verbose=-1)
        search = GridSearchCV(model, {"min_child_samples": [5, 40]}, cv=3)
        return search.fit(features, features[:, 0], callbacks=[PacelineCallback(path=tmp_path)]).cv_results_

    expect(7)
    first = search()["mean_test_score"]
    assert recorder.events[0] == ("start", 0, 7000)
    assert recorder.events[-1] == ("finish", 7000, 7000)
    assert [done for _, done, _ in recorder.events] == sorted(done for _, done, _ in recorder.events)
    restart_process()
    recorder.shown.clear()
    expect(7)
    assert np.array_equal(search()["mean_test_score"], first)
    assert recorder.events == [("start", 7000, 7000), ("finish", 7000, 7000)]


@pytest.mark.parametrize("trainings", [np.int64(2), [np.int64(100), np.float32(300)]])
def test_numbers_of_numpy_are_accepted(expect, recorder, trainings):
    expect(trainings)
    for _ in range(2):
        list(track("ab"))
    assert recorder.events[-1] == ("finish", 2000, 2000)


@pytest.mark.parametrize("trainings", [0, -1, 1.5, True, "3", [], [1, 0], [1, -2], [1, "2"], [1, float("nan")]])
def test_invalid_trainings_are_rejected(trainings):
    with pytest.raises(ValueError, match="trainings: got"):
        expect_trainings(trainings)


def test_call_within_a_loop_is_rejected():
    for _ in track([1]):
        with pytest.raises(RuntimeError, match="within a loop"):
            expect_trainings(2)
    for _ in track_epochs(1):
        with pytest.raises(RuntimeError, match="within a loop"):
            expect_trainings(2)
        for _ in track([1]):
            pass


def test_job_declares_its_trainings_once(monkeypatch):
    monkeypatch.setattr(_trainings, "run_by_paceline", lambda: True)
    expect_trainings(2)
    with pytest.raises(RuntimeError, match="called twice"):
        expect_trainings(2)
