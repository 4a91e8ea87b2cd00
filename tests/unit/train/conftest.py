"""Fixtures: a manual clock, a separate training session for each test, and trainings on several machines."""

import signal

import pytest

from paceline.train import _session

from .machines import TrainingOfMachines


class ManualClock:
    """A clock that tests set; each reading advances it by ``step_s``."""

    def __init__(self):
        self.now_s = 1000.0
        self.step_s = 0.0

    def __call__(self):
        self.now_s += self.step_s
        return self.now_s


class Recorder:
    """A display that records the progress."""

    def __init__(self, interval_s=0.2):
        self.interval_s = interval_s
        self.shown = []
        self.closed = False

    def show(self, progress):
        self.shown.append(progress)

    def close(self):
        self.closed = True

    @property
    def events(self):
        return [(progress.event, progress.done, progress.total) for progress in self.shown]


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def recorder():
    return Recorder()


@pytest.fixture
def new_process(monkeypatch, clock):
    """Return a function that resets the process's training, as a restart does."""

    def begin():
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        fresh = _session.Session(clock)
        monkeypatch.setattr(_session, "current", fresh)
        return fresh

    return begin


@pytest.fixture(autouse=True)
def session(monkeypatch, new_process):
    """Give each test a separate session, outside a job."""
    for name in ("PACELINE_OUTPUT", "PACELINE_INPUT", "PACELINE_CHECKPOINT", "PACELINE_CONTROL"):
        monkeypatch.delenv(name, raising=False)
    before = signal.getsignal(signal.SIGTERM)  # Airflow in other tests may have set it
    yield new_process()
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def train(tmp_path, fork):
    """Return a function that begins a training on several machines, given the names of its workers."""
    trainings = []

    def begin(*names, **options):
        trainings.append(TrainingOfMachines(fork, tmp_path, names, **options))
        return trainings[-1]

    yield begin
    for training in trainings:
        training.end()
