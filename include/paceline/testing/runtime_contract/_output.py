"""The contract of a job's inputs and outputs: its files, its lines and its results."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from paceline.errors import JobLostError, TrainingFailedError
from paceline.train.progress import parse_line

from .harness import MAX_OUTPUT_BYTES, RuntimeHarness, read_to_end

RESAMPLED = """
from paceline.train import report, resampled
report(auc=resampled(lambda rows: 1 / (1 + rows[0]), rows=1000, resamples=10_000))
"""

INSPECT = """
import json, os, pathlib, paceline.train
print(json.dumps({"input": pathlib.Path(os.environ["PACELINE_INPUT"], "data/a.txt").read_text(),
    "environment": dict(os.environ), "beside": sorted(os.listdir())}))
for folder in ("PACELINE_OUTPUT", "PACELINE_CHECKPOINT"):
    pathlib.Path(os.environ[folder], "deep").mkdir()
    pathlib.Path(os.environ[folder], "deep", "model.bin").write_bytes(b"weights")
"""

CHATTY = r"""
import os, sys
os.write(1, b"\xff\xfe broken\n" + b"x" * 200_000 + b"\nafter\n10%\r50%\r100%\n\n")
sys.stdout.reconfigure(write_through=False)
for i in range(20_000): print("line", i)
print("last", end="")
"""

LINKS = """
import os, pathlib
os.chdir(os.environ["PACELINE_OUTPUT"])
pathlib.Path("runs/7").mkdir(parents=True)
pathlib.Path("epoch=3.ckpt").write_text("weights")
pathlib.Path("runs/7/model").write_text("seven")
os.symlink("epoch=3.ckpt", "last.ckpt")
os.symlink("7", "runs/best")
os.symlink("../../last.ckpt", "runs/7/last")
os.link("epoch=3.ckpt", "hard.ckpt")
os.link("last.ckpt", "hard-link-to-a-link.ckpt", follow_symlinks=False)
os.symlink("/etc/passwd", "absolute")
os.symlink("../work/job.py", "out")
os.symlink("runs/8", "dangling")
os.symlink("round", "about")
os.symlink("about", "round")
os.symlink("..", "runs/7/up")
os.mkfifo("pipe")
"""

SEVEN = {"model": "seven", "last": "weights"}

# The larger the number, the newer the file.
SAVES_BESIDE_ITS_OUTPUT = """
import os, pathlib
names = ["data/a.bin", "data/b.bin", "data/c.bin", "runs/7/events", "it's best.pt", "model.pt"]
for number, name in enumerate([*names, ".cache/fonts", "lib/__pycache__/lib.pyc"]):
    pathlib.Path(name).parent.mkdir(parents=True, exist_ok=True)
    pathlib.Path(name).write_bytes(bytes(1_000_000))
    os.utime(name, (1_900_000_000 + 60 * number,) * 2)
os.symlink("/etc/passwd", "link.pt")
"""

SAVED = ["model.pt", "it's best.pt", "runs/7/events", "data/c.bin", "data/b.bin"]


class JobOutput:
    """What a job reads, prints and writes."""

    def test_every_resample_of_a_report_arrives(self, harness: RuntimeHarness) -> None:
        job = harness.runtime.start(harness.spec(RESAMPLED))
        *parts, without_blocks, last = filter(None, map(parse_line, read_to_end(job)))
        job.remove()
        without = without_blocks.resamples["auc"].without
        assert [value == 1.0 for value in without] == [False] + [True] * 30, "the first block contains row 0"
        values = [value for part in parts for value in part.resamples["auc"].values]
        assert [part.resamples["auc"].first for part in parts] == list(range(0, 10_000, 200))
        assert len(values) == 10_000
        assert min(value for value in values if value is not None) == pytest.approx(0.001, rel=0.01)
        assert last.metrics == {"auc": 1.0}

    def test_job_has_its_inputs_and_leaves_only_its_output(
        self, harness: RuntimeHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "postgresql://airflow:s3cret@db")
        data = tmp_path / "data"
        data.mkdir()
        (data / "a.txt").write_text("reference")
        began_s = time.time()
        job = harness.runtime.start(harness.spec(INSPECT, inputs={"data": data}, environment={"SEED": "7"}))
        (line,) = read_to_end(job)
        seen = json.loads(line)
        assert (seen["input"], seen["environment"]["SEED"], seen["beside"]) == ("reference", "7", ["job.py"])
        assert "s3cret" not in line
        status = job.status()
        assert (status.state, status.exit_code, status.reason, status.out_of_memory) == ("exited", 0, "", False)
        assert status.started_s is not None
        assert status.finished_s is not None
        # The engine may run on another machine with a different clock.
        assert began_s - 60 < status.started_s <= status.finished_s < time.time() + 60
        job.collect(tmp_path / "out")
        assert (tmp_path / "out" / "deep" / "model.bin").read_bytes() == b"weights"
        assert [found.name for found in (tmp_path / "out").iterdir()] == ["deep"]
        job.remove()
        job.remove()
        assert job.status().state == "gone"
        with pytest.raises(JobLostError):
            harness.runtime.reattach(job.id)

    def test_fast_output_is_read_once_and_in_order(self, harness: RuntimeHarness) -> None:
        job = harness.runtime.start(harness.spec(CHATTY, devices=harness.runtime.capacity()))
        broken, long, *rest = read_to_end(job)
        assert broken == "�� broken"
        assert long.startswith("x" * 65536)
        assert len(long) < 65600
        assert rest == ["after", "100%", "", *(f"line {i}" for i in range(20_000)), "last"]
        job.remove()

    def test_output_above_the_limit_is_rejected_as_a_whole(self, harness: RuntimeHarness, tmp_path: Path) -> None:
        code = f"open(out + '/a', 'w')\nopen(out + '/x', 'wb').write(bytes({2 * MAX_OUTPUT_BYTES}))"
        job = harness.runtime.start(harness.spec(f"import os\nout = os.environ['PACELINE_OUTPUT']\n{code}"))
        read_to_end(job)
        assert job.status().exit_code == 0
        with pytest.raises(TrainingFailedError, match=f"limit of {MAX_OUTPUT_BYTES} bytes"):
            job.collect(tmp_path / "out")
        assert list((tmp_path / "out").iterdir()) == []
        job.remove()

    def test_links_inside_the_output_are_copied_and_other_links_are_skipped(
        self, harness: RuntimeHarness, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        job = harness.runtime.start(harness.spec(LINKS))
        assert read_to_end(job) == []
        job.collect(tmp_path / "out")
        taken = {found.relative_to(tmp_path / "out").as_posix(): found for found in (tmp_path / "out").rglob("*")}
        assert not any(found.is_symlink() for found in taken.values())
        assert {name: found.read_text() for name, found in taken.items() if found.is_file()} == {
            "epoch=3.ckpt": "weights",
            "last.ckpt": "weights",
            "hard.ckpt": "weights",
            "hard-link-to-a-link.ckpt": "weights",
            **{f"runs/{run}/{name}": text for run in ("7", "best") for name, text in SEVEN.items()},
        }
        (warning,) = [record.message for record in caplog.records if "Skipped" in record.message]
        assert "Skipped 8 entries of the job's output" in warning  # "up" is both in runs/7 and in runs/best
        assert warning.endswith("and 3 more")
        job.remove()

    @pytest.mark.parametrize("read_only", [False, True])
    def test_newest_files_of_the_working_folder_are_named(self, harness: RuntimeHarness, read_only: bool) -> None:
        job = harness.runtime.start(harness.spec(SAVES_BESIDE_ITS_OUTPUT, read_only=read_only))
        assert read_to_end(job) == []
        assert job.work_files({"job.py"}) == SAVED
        job.remove()
        assert job.work_files({"job.py"}) == []

    @pytest.mark.parametrize(
        "code",
        [
            pytest.param("pass", id="nothing was written"),
            pytest.param("import os; os.chmod('.', 0o500)", id="the folder is read-only"),
            pytest.param(
                "import os; os.rename(os.getcwd(), os.environ['PACELINE_CHECKPOINT'] + '/moved')", id="no folder"
            ),
        ],
    )
    def test_no_files_of_the_working_folder_are_named_if_there_are_none(
        self, harness: RuntimeHarness, code: str
    ) -> None:
        if not harness.owns_its_folder:
            code = f"try: {code}\nexcept OSError: pass"  # the job's user cannot move its folder
        job = harness.runtime.start(harness.spec(code))
        assert read_to_end(job) == []
        assert job.work_files({"job.py"}) == []
        job.remove()

    def test_program_among_the_input_files_keeps_its_mode(self, harness: RuntimeHarness, tmp_path: Path) -> None:
        script = tmp_path / "run.sh"
        script.write_text("#!/bin/sh\necho from a script")
        script.chmod(0o755)
        job = harness.runtime.start(harness.spec(command=["./run.sh"], files={"run.sh": script}))
        assert read_to_end(job) == ["from a script"]
        job.remove()
