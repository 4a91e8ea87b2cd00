"""Training of several ranks under ``torchrun`` or Accelerate reports, saves and resumes as one job.

All processes, signals and process groups are real. ``ranks.py`` is the training code. ``torchrun`` starts the ranks
that are killed; a fork with the same environment, which is faster, starts the others.
"""

import os
import subprocess
from types import SimpleNamespace

import pytest
import torch

from paceline.train import checkpoint, report, track
from paceline.train._display import Silent, choose_display
from paceline.train.pacing.share import CpuShare
from paceline.train.progress import parse_line

from .machines import HERE, INCLUDE, free_port

SCRIPT = HERE / "ranks.py"
BATCHES, KILLED_AT, TERMINATED_AT = 15, 7, 12  # an epoch has five batches


class Ranks:
    """Two ranks that train in one folder, also after a restart."""

    def __init__(self, fork, folder, library):
        folder.mkdir()
        self.folder, self._fork, self._library = folder, fork, library

    def start(self, killed_at=0):
        """Start both ranks as ``torchrun`` does; return the exit codes and the combined output."""
        environment = self._environment() | {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        with (self.folder / "log").open("w") as log:
            processes = [
                self._fork(
                    [SCRIPT, self._library, killed_at, 0],
                    env=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
                for rank in range(2)
            ]
            codes = [process.wait(120) for process in processes]
        return SimpleNamespace(codes=codes, log=(self.folder / "log").read_text())

    def start_torchrun(self, killed_at, terminated_at):
        """Start ``torchrun``, which restarts killed ranks once; return its exit code and the combined output."""
        options = ["--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", 2, "--max-restarts", 1]
        command = ["-m", "torch.distributed.run", *options, SCRIPT]
        with (self.folder / "log").open("w") as log:
            process = self._fork(
                [*command, self._library, killed_at, terminated_at],
                # Otherwise, restarted ranks may read the addresses of their predecessors from a shared store.
                env=self._environment() | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            code = process.wait(240)
        return SimpleNamespace(code=code, log=(self.folder / "log").read_text())

    def _environment(self):
        return os.environ | {"PACELINE_OUTPUT": str(self.folder), "PYTHONPATH": str(INCLUDE), "OMP_NUM_THREADS": "1"}

    def text(self, name):
        return (self.folder / name).read_text()

    @property
    def seen(self):
        """The batches that each rank has trained, in the order of training."""
        return [self.text(f"seen-{rank}").splitlines() for rank in range(2)]

    @property
    def weights(self):
        models = [torch.load(self.folder / f"model-{rank}.pt", weights_only=True) for rank in range(2)]
        assert torch.equal(models[0]["weight"], models[1]["weight"])
        return torch.cat([models[0]["weight"].flatten(), models[0]["bias"]])


@pytest.fixture(scope="module", params=["ddp", "accelerate"])
def undisturbed(fork, tmp_path_factory, request):
    ranks = Ranks(fork, tmp_path_factory.mktemp("ranks") / "undisturbed", request.param)
    ranks.library = request.param
    ranks.ended = ranks.start()
    assert ranks.ended.codes == [0, 0], ranks.ended.log
    return ranks


def progress_events(log):
    return [(one.event, one.done) for line in log.splitlines() if (one := parse_line(line))]


def test_only_rank_0_shows_progress_and_writes_checkpoints(undisturbed):
    events = progress_events(undisturbed.ended.log)
    saved = [("checkpoint", done) for done in range(1, BATCHES + 1)]
    assert events == [("start", 0), *saved, ("progress", BATCHES), ("finish", BATCHES)]
    assert len(list((undisturbed.folder / "checkpoint-0").iterdir())) == 2
    assert not (undisturbed.folder / "checkpoint-1").exists()


def test_ranks_share_the_batches_of_each_epoch_and_shuffle_each_epoch_anew(undisturbed):
    indices = [[line.split(" ", 1)[1] for line in seen] for seen in undisturbed.seen]
    assert set(indices[0]).isdisjoint(indices[1])
    assert len(set(indices[0])) > 2 * BATCHES // 3


def test_killed_ranks_end_with_the_weights_of_undisturbed_ranks(fork, undisturbed, tmp_path):
    ranks = Ranks(fork, tmp_path / "killed", undisturbed.library)
    killed = ranks.start(KILLED_AT)
    assert killed.codes[0] == -9
    assert killed.codes[1] != 0
    resumed = ranks.start()
    assert resumed.codes == [0, 0], resumed.log
    assert resumed.log.count("resumed from") == 1
    assert progress_events(resumed.log)[0] == ("start", KILLED_AT - 1)
    assert [seen[-len(once) + KILLED_AT - 1 :] for seen, once in zip(ranks.seen, undisturbed.seen, strict=True)] == [
        once[KILLED_AT - 1 :] for once in undisturbed.seen
    ]
    assert torch.equal(ranks.weights, undisturbed.weights)
    assert ranks.text("random-0") != ranks.text("random-1"), "with equal random numbers, dropout masks are equal"


def test_torchrun_restarts_killed_ranks_and_its_sigterm_loses_no_batch(fork, undisturbed, tmp_path):
    if undisturbed.library != "ddp":
        pytest.skip("torchrun starts the same processes for Accelerate")
    ranks = Ranks(fork, tmp_path / "killed", "ddp")
    first = ranks.start_torchrun(KILLED_AT, TERMINATED_AT)
    assert first.code != 0
    assert "(exitcode: -9) local_rank: 0" in first.log
    assert "Unable to shutdown process" not in first.log, "a rank has waited for SIGKILL"
    starts = [event for event in progress_events(first.log) if event[0] == "start"]
    assert starts == [("start", 0), ("start", KILLED_AT - 1)]
    last = ranks.start()
    assert last.codes == [0, 0], last.log
    assert progress_events(last.log)[0] == ("start", TERMINATED_AT)
    assert ranks.seen[0][-BATCHES + KILLED_AT - 1 :] == undisturbed.seen[0][KILLED_AT - 1 :]
    assert torch.equal(ranks.weights, undisturbed.weights)


@pytest.fixture
def as_rank_1(monkeypatch):
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)


def test_rank_1_shows_nothing(as_rank_1, monkeypatch, capsys):
    monkeypatch.setenv("PACELINE_PROGRESS", "lines")
    assert isinstance(choose_display(), Silent)
    for _ in track("ab"):
        report(loss=0.5)
    report(accuracy=0.5)
    assert capsys.readouterr() == ("", "")


def test_checkpoint_of_several_ranks_without_a_process_group_is_rejected(as_rank_1, tmp_path):
    with pytest.raises(RuntimeError, match=r"init_process_group\(\) or create the Accelerator before checkpoint\(\)"):
        checkpoint(model=torch.nn.Linear(1, 1), path=tmp_path / "checkpoint")
    assert not (tmp_path / "checkpoint").exists()


def test_model_in_shards_is_rejected(tmp_path):
    sharded = type("FullyShardedDataParallel", (torch.nn.Sequential,), {})(torch.nn.Linear(1, 1))
    with pytest.raises(ValueError, match="model: got 'a state in shards"):
        checkpoint(model=torch.nn.Sequential(sharded), path=tmp_path)


def test_ranks_of_a_machine_divide_the_share_of_the_job(as_rank_1, tmp_path, monkeypatch):
    (tmp_path / "control").write_text('{"devices": 3}')
    monkeypatch.setenv("PACELINE_CONTROL", str(tmp_path / "control"))
    assert CpuShare().read() == 1.5
