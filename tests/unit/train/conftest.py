"""A clock that tests move, and a training session of their own for each test."""

import signal

import pytest

from paceline.train import _session

from .machines import TrainingOfMachines


class ManualClock:
    """Seconds that pass only when told to; ``step_s`` pass with each look at it."""

    def __init__(self):
        self.now_s = 1000.0
        self.step_s = 0.0

    def __call__(self):
        self.now_s += self.step_s
        return self.now_s


class Recorder:
    """A display that keeps what it is shown."""

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
def new_life(monkeypatch, clock):
    """Return what makes the process forget its training, as a restart does."""

    def begin():
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        made = _session.Session(clock)
        monkeypatch.setattr(_session, "current", made)
        return made

    return begin


@pytest.fixture(autouse=True)
def session(monkeypatch, new_life):
    """Each test has a process's training of its own, outside of a job."""
    for name in ("PACELINE_OUTPUT", "PACELINE_INPUT", "PACELINE_CHECKPOINT", "PACELINE_CONTROL"):
        monkeypatch.delenv(name, raising=False)
    before = signal.getsignal(signal.SIGTERM)  # an Airflow of other tests may have set it
    yield new_life()
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def train(tmp_path, fork):
    """Begin a training on several machines; called with the names of its workers."""
    trainings = []

    def begin(*names, **options):
        trainings.append(TrainingOfMachines(fork, tmp_path, names, **options))
        return trainings[-1]

    yield begin
    for training in trainings:
        training.end()
