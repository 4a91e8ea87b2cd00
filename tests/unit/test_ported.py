import random
import re
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
from benchmarks import ported
from benchmarks.local_jobs import by_deadline, train

from paceline.control import PastRun

# With the argument "waits", the first life waits in its third batch for the kill.
SCRIPT = """
import signal, sys
from pathlib import Path
from paceline.train import Kept, checkpoint, output_dir, track

state, lost = Kept(total=0.0), 0.0
checkpoint(state=state, every_s=0)
for batch in track(range(5)):
    state.total += batch
    lost += batch
    if sys.argv[1] == "waits" and batch == 2 and not Path("waits").exists():
        Path("waits").touch()
        while True:
            signal.pause()
Path(output_dir(), "total").write_text(f"{state.total}" + (f" {lost}" if sys.argv[2] == "loses" else ""))
"""


class KillAtWait(threading.Thread):
    """Sends the signal as soon as the script waits for it."""

    waits: Path

    def __init__(self, after_s, function, arguments):
        super().__init__(target=self.wait_and_call, args=(function, arguments))
        self.cancel = self.join

    def wait_and_call(self, function, arguments):
        while not self.waits.exists():
            time.sleep(0.01)
        function(*arguments)


@pytest.fixture
def make_script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return lambda *arguments: ported.Script(path, arguments, None)


@pytest.mark.parametrize(("keeps", "expected"), [("keeps", []), ("loses", ["total"])])
def test_round_names_the_files_that_differ(make_script, tmp_path, monkeypatch, keeps, expected):
    monkeypatch.setattr(ported.random.Random, "choice", lambda self, signals: signal.SIGKILL)
    monkeypatch.setattr(ported.threading, "Timer", KillAtWait)
    monkeypatch.setattr(KillAtWait, "waits", tmp_path / "round" / "work" / "waits", raising=False)
    first = make_script("runs", keeps).live(tmp_path / "first")
    assert (first.code, first.steps[-1]) == (0, 5)
    lives = ported.run_round(make_script("waits", keeps), tmp_path / "round", 1, 0.1, random.Random(1))
    assert [life.code for life in lives] == [-signal.SIGKILL, 0]
    assert any("resumed from" in message for message in lives[1].messages)
    assert ported.differences(tmp_path / "first" / "output", tmp_path / "round" / "output") == expected


@pytest.mark.skipif(sys.platform != "linux", reason="the process runtime is for Linux")
def test_script_is_run_on_all_cores_and_twice_by_a_deadline(tmp_path, capsys, monkeypatch):
    past = PastRun(20, startup_s=0.3, tail_s=0.1, devices=1.0, batches_per_s=20.0, exponent=1.0, pauses_s=0.0)
    known = []
    # The script is too short for measurements.
    monkeypatch.setattr(ported, "train", lambda *given: train(*given) | {"learned": past.to_dict()})
    monkeypatch.setattr(ported, "by_deadline", lambda *given: known.append(given[2]) or by_deadline(*given))
    path = tmp_path / "train.py"
    path.write_text("import time\nfrom paceline.train import track\nfor _ in track(range(20)): time.sleep(0.05)")
    assert ported.main([str(path), "--deadline", "1.5"]) == 0
    starts = [line.split(":")[0] for line in capsys.readouterr().out.splitlines()]
    assert [line for line in starts if "run" in line] == ["first run", "second run"]
    assert starts[0].startswith("on all ")
    assert known == [None, past], "the second run knows the first"


@pytest.mark.skipif(sys.platform != "linux", reason="the process runtime is for Linux")
def test_script_that_fails_by_a_deadline_is_reported(tmp_path, capsys):
    path = tmp_path / "train.py"
    path.write_text("raise SystemExit('no data')")
    assert ported.main([str(path), "--deadline", "1.5"]) == 2
    assert re.search(r"exit code 1.*\nno data", capsys.readouterr().out)


def test_undisturbed_runs_that_differ_are_reported(tmp_path, capsys):
    path = tmp_path / "train.py"
    path.write_text(
        "import uuid\nfrom paceline.train import output_dir, track\nfor _ in track([1]): pass\n"
        "(output_dir() / 'model').write_text(uuid.uuid4().hex)"
    )
    assert ported.main([str(path)]) == 2
    assert "two undisturbed runs differ (model)" in capsys.readouterr().out


def test_script_that_fails_is_reported(tmp_path, capsys):
    path = tmp_path / "train.py"
    path.write_text("raise SystemExit('no data')")
    assert ported.main([str(path)]) == 2
    assert re.search(r"exit code 1, 0 progress lines\nno data", capsys.readouterr().out)


def test_script_that_ends_before_its_kill_is_exact(tmp_path, capsys):
    path = tmp_path / "train.py"
    path.write_text("from paceline.train import track\nfor _ in track([1]): pass")
    assert ported.main([str(path), "--rounds", "1"]) == 0
    assert "1 of 1 rounds exact" in capsys.readouterr().out
