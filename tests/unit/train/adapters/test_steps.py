"""``Steps`` drives a ``track`` loop without a ``for`` statement."""

import os
import random
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from paceline.train import _session, report, stop_early, track, track_epochs
from paceline.train.adapters._steps import Steps
from paceline.train.pacing import threads

TOTAL = 6


@pytest.fixture
def shown(monkeypatch, recorder):
    """The progress that loops show."""
    monkeypatch.setattr("paceline.train._session.choose_display", lambda: recorder)
    return recorder


class FakeLibrary:
    """A library that trains ``steps`` steps and writes their number. ``actions`` maps a step to a call in it."""

    def __init__(self, folder, steps=TOTAL, epochs=1):
        self.trained = []
        self.steps = Steps(self.write, path=folder, every_s=0)
        self.restored = None if self.steps.restored is None else (self.steps.restored / "done").read_text()
        self.steps.start(steps, epochs=epochs)

    def write(self, folder):
        (folder / "done").write_text(str(self.steps.done))

    def train(self, actions=()):
        while self.steps.advance():
            self.trained.append(self.steps.done)
            if self.steps.done in dict(actions):
                dict(actions)[self.steps.done]()
        return self.trained


def test_training_resumes_at_the_step_after_the_last_save(tmp_path, restart_process, shown):
    killed = FakeLibrary(tmp_path)
    killed.train({4: killed.steps.close})
    restart_process()
    resumed = FakeLibrary(tmp_path)
    assert (resumed.steps.done, resumed.restored) == (4, "4")
    assert resumed.train() == [4, 5]
    assert shown.events[-1] == ("finish", TOTAL, TOTAL)


def test_random_numbers_continue_after_a_restart(tmp_path, restart_process):
    def draw(folder, killed_in=None):
        random.seed(3)
        library, drawn = FakeLibrary(folder), {}
        while library.steps.advance():
            if library.steps.done == killed_in:
                library.steps.close()
                return drawn
            drawn[library.steps.done] = random.random()
        return drawn

    uninterrupted = draw(None)
    restart_process()
    before = draw(tmp_path, killed_in=3)
    restart_process()
    assert before | draw(tmp_path) == uninterrupted


def test_finished_training_is_not_repeated(tmp_path, restart_process, shown):
    FakeLibrary(tmp_path).train()
    restart_process()
    assert FakeLibrary(tmp_path).train() == []
    assert shown.events[-1] == ("finish", TOTAL, TOTAL)


def test_stop_early_also_ends_training_after_a_restart(tmp_path, restart_process, shown):
    assert FakeLibrary(tmp_path).train({2: stop_early}) == [0, 1, 2]
    assert shown.events[-1] == ("finish", 3, 3)
    restart_process()
    assert FakeLibrary(tmp_path).train() == []


def test_sigterm_saves_and_ends_the_process_after_the_step(tmp_path, restart_process):
    library = FakeLibrary(tmp_path)
    with pytest.raises(SystemExit) as ended:
        library.train({3: lambda: os.kill(os.getpid(), signal.SIGTERM)})
    assert ended.value.code == 143
    restart_process()
    assert FakeLibrary(tmp_path).train() == [4, 5]


def test_library_that_ends_before_the_last_step_finishes_the_loop(tmp_path, shown):
    library = FakeLibrary(tmp_path)
    library.steps.advance()
    library.steps.advance()
    library.steps.end()
    assert shown.events[-1] == ("finish", 2, 2)
    assert not library.steps.advance()


def test_epochs_are_counted(shown, clock):
    clock.step_s = 1
    library = FakeLibrary(None, steps=3, epochs=2)
    assert library.train() == list(range(TOTAL))
    assert {(one.epoch, one.epochs) for one in shown.shown} == {(0, 2), (1, 2)}
    assert ("epoch_end", 2, TOTAL) in shown.events


def test_reports_before_the_first_step_are_shown_with_it(shown):
    library = FakeLibrary(None)
    report(loss=3.0)
    library.train()
    assert shown.shown[0].loss == 3.0
    assert {one.event for one in shown.shown} <= {"start", "progress", "finish"}


def test_training_within_a_loop_neither_saves_nor_shows_progress(tmp_path, shown):
    for _ in track(range(2)):
        assert FakeLibrary(tmp_path).train() == list(range(TOTAL))
    assert shown.events[-1] == ("finish", 2, 2)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("steps_done", [0, 2])
def test_closed_training_leaves_the_session_as_before(tmp_path, steps_done):
    library = FakeLibrary(tmp_path)
    for _ in range(steps_done):
        library.steps.advance()
    library.steps.close()
    session = _session.current
    assert (session.loop, session.checkpoint, threads.library_pool) == (None, None, None)


class LibraryError(Exception):
    """An error in a library, which its training function does not tell its callbacks."""


def library_train(body, folder=None, *, with_adapter=True):
    """A library's training function: it trains two steps and calls ``body`` in each."""
    steps = Steps(lambda folder: None, path=folder, every_s=0, within=library_train) if with_adapter else None
    if steps is not None:
        steps.start(2)
    for _ in range(2):
        if steps is not None:
            steps.advance()
        body()
    if steps is not None:
        steps.advance()


def fail():
    raise LibraryError


def train_and_fail(folder=None):
    with pytest.raises(LibraryError):
        library_train(fail, folder)


def train_and_fail_in_a_thread(folder=None):
    with ThreadPoolExecutor(1) as pool:
        pool.submit(train_and_fail, folder).result()


FAILURES = pytest.mark.parametrize("fails", [train_and_fail, train_and_fail_in_a_thread])


@FAILURES
def test_loop_after_an_error_in_a_library_shows_its_progress(tmp_path, shown, fails):
    fails(tmp_path)
    assert list(track("abc")) == ["a", "b", "c"]
    assert shown.events[-1] == ("finish", 3, 3)
    assert _session.current.checkpoint is None


@FAILURES
def test_report_after_an_error_in_a_library_is_shown(shown, fails):
    fails()
    report(auc=0.5)
    assert (shown.shown[-1].event, shown.shown[-1].metrics) == ("report", {"auc": 0.5})


@FAILURES
def test_stop_early_after_an_error_in_a_library_is_outside_a_loop(fails):
    fails()
    with pytest.raises(RuntimeError, match="outside a"):
        stop_early()


@FAILURES
def test_training_after_an_error_in_a_library_shows_its_progress(shown, fails):
    fails()
    library_train(lambda: None)
    assert shown.events[-1] == ("finish", 2, 2)


def test_error_in_a_training_within_a_call_of_the_same_function_is_noticed(shown):
    def train_within():
        train_and_fail()
        report(auc=0.5)
        assert shown.events[-1][0] == "report"
        train_and_fail()
        library_train(lambda: None)
        assert shown.events[-1] == ("finish", 2, 2)

    library_train(train_within, with_adapter=False)


def test_running_training_in_another_thread_stays_open(shown):
    def read_in_another_thread():
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(list, track("abc")).result() == ["a", "b", "c"]  # as a nested loop

    library_train(read_in_another_thread)
    assert shown.events[-1] == ("finish", 2, 2)


def test_training_as_the_body_of_track_epochs_is_rejected(tmp_path):
    """After a restart, the epoch of the first training would count as done."""
    for _ in track_epochs(1):
        with pytest.raises(RuntimeError, match=r"loop over range\(n\) and call expect_trainings"):
            FakeLibrary(tmp_path)
        for _ in track("a"):
            pass
        FakeLibrary(tmp_path).train()  # after the loop over batches, such as for a validation


def test_step_before_the_start_is_an_error(tmp_path):
    with pytest.raises(RuntimeError, match=r"advance\(\) was called before Steps.start\(\)"):
        Steps(lambda folder: None, path=tmp_path).advance()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"steps": 0}, "rounds: got 0, expected a whole number of at least 1"),
        ({"steps": 2.5}, "rounds: got 2.5, expected a whole number"),
        ({"steps": 0, "total": 3}, "rounds: got 0, expected a whole number"),
        ({"steps": 3, "total": 0}, "total: got 0, expected a whole number"),
    ],
)
def test_impossible_numbers_of_steps_are_rejected(arguments, message):
    with pytest.raises(ValueError, match=message):
        Steps(lambda folder: None).start(**arguments, argument="rounds")


@pytest.mark.parametrize("fails", [False, True])
def test_each_step_waits_for_the_share_of_the_gpu(gpu_share, fails):
    steps = Steps(lambda folder: None)
    steps.start(2)
    while steps.advance():
        gpu_share.calls.append("step")
        if fails:
            steps.close()
            break
    calls = [call for call in gpu_share.calls if call != "refresh"]
    first = ["begin", "step"]
    assert calls == (first if fails else [*first, "end, other work is due", *first, "end"]) + ["leave", "close"]
