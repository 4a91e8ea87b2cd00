"""Fixtures: a manual clock, a new training session per test, and jobs on several emulated machines."""

import signal

import pytest

from paceline.train import _session

from .machines import EmulatedTraining


class ManualClock:
    """A clock that tests set and that each reading advances by ``step_s``."""

    def __init__(self):
        self.now_s = 1000.0
        self.step_s = 0.0

    def __call__(self):
        self.now_s += self.step_s
        return self.now_s


class RecordingDisplay:
    """A display that records the displayed progress."""

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


class RecordingGpuShare:
    """A share of a GPU that records when batches may begin and have ended."""

    used_s = 1.25
    waited_s = 0.0

    def __init__(self):
        self.calls = []

    def begin(self):
        self.calls.append("begin")

    def end(self, *, due):
        self.calls.append("end, other work is due" if due else "end")

    def leave(self, *, counts=False):
        self.calls.append("leave, counts" if counts else "leave")

    def refresh(self):
        self.calls.append("refresh")

    def close(self):
        self.calls.append("close")


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def recorder():
    return RecordingDisplay()


@pytest.fixture
def restart_process(monkeypatch, clock):
    """Return a function that starts a new training session, as a restart of the process does."""

    def begin_session():
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        fresh = _session.Session(clock)
        monkeypatch.setattr(_session, "current", fresh)
        return fresh

    return begin_session


@pytest.fixture(autouse=True)
def session(monkeypatch, restart_process):
    """Give each test a new training session outside a job."""
    for name in ("PACELINE_OUTPUT", "PACELINE_INPUT", "PACELINE_CHECKPOINT", "PACELINE_CONTROL"):
        monkeypatch.delenv(name, raising=False)
    before = signal.getsignal(signal.SIGTERM)  # an Airflow in another test may have set a handler
    yield restart_process()
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def gpu_share(session):
    session._gpu_share = RecordingGpuShare()
    return session._gpu_share


@pytest.fixture
def start_training(tmp_path, fork):
    """Return a function that starts a job on several emulated machines. Its arguments are the names of the workers."""
    jobs = []

    def start_job(*names, **options):
        jobs.append(EmulatedTraining(fork, tmp_path, names, **options))
        return jobs[-1]

    yield start_job
    for training in jobs:
        training.kill_all()
