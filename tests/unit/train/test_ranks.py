"""Training of several ranks under ``torchrun`` or Accelerate reports, saves and resumes as one job.

All processes, signals and process groups are real. ``ranks.py`` is the training code. ``torchrun`` starts the killed
ranks of plain torch; a fork with the same environment, which is faster, starts the others.
"""

import json
import os
import random
import subprocess
from types import SimpleNamespace

import pytest
import torch

from paceline.testing.adapter_contract import EXIT_CODES
from paceline.train import checkpoint, report, track
from paceline.train._display import Silent, choose_display
from paceline.train.pacing.share import CpuShare
from paceline.train.progress import parse_line

from .adapters.conftest import random_ends
from .machines import HERE, INCLUDE, free_port

SCRIPT = HERE / "ranks.py"
BATCHES = 15  # in three epochs


class Ranks:
    """Two ranks that train in one folder, also after a restart. ``ranks.py`` describes the ``ends``."""

    def __init__(self, fork, folder, library, ends=()):
        folder.mkdir()
        self.folder, self.library, self.ends, self._fork = folder, library, ends, fork

    def start(self):
        """Start both ranks as ``torchrun`` does; return the exit codes and the combined output."""
        environment = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        return self._run([environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(2)])

    def start_torchrun(self):
        """Start ``torchrun``, which restarts killed ranks and ends on SIGTERM; return its exit code and the output."""
        options = ["--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", 2, "--max-restarts", len(self.ends)]
        # Otherwise, restarted ranks may read the addresses of their predecessors from a shared store.
        environment = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        return self._run([environment], "-m", "torch.distributed.run", *options)

    def _run(self, environments, *launcher):
        shared = {"PACELINE_OUTPUT": str(self.folder), "PYTHONPATH": str(INCLUDE), "OMP_NUM_THREADS": "1"}
        with (self.folder / "log").open("w") as log:
            processes = [
                self._fork(
                    [*launcher, SCRIPT, self.library, json.dumps(self.ends)],
                    env=os.environ | shared | environment,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
                for environment in environments
            ]
            codes = [process.wait(240) for process in processes]
        return SimpleNamespace(codes=codes, log=self.text("log"))

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
def uninterrupted(fork, tmp_path_factory, request):
    ranks = Ranks(fork, tmp_path_factory.mktemp("ranks") / "uninterrupted", request.param)
    ranks.ended = ranks.start()
    assert ranks.ended.codes == [0, 0], ranks.ended.log
    return ranks


def progress_events(log):
    return [(one.event, one.done) for line in log.splitlines() if (one := parse_line(line))]


def test_only_rank_0_shows_progress_and_writes_checkpoints(uninterrupted):
    events = progress_events(uninterrupted.ended.log)
    saved = [("checkpoint", done) for done in range(1, BATCHES + 1)]
    assert events == [("start", 0), *saved, ("progress", BATCHES), ("finish", BATCHES)]
    assert len(list((uninterrupted.folder / "checkpoint-0").iterdir())) == 2
    assert not (uninterrupted.folder / "checkpoint-1").exists()


def test_ranks_share_the_batches_of_each_epoch_and_shuffle_each_epoch_anew(uninterrupted):
    indices = [[line.split(" ", 1)[1] for line in seen] for seen in uninterrupted.seen]
    assert set(indices[0]).isdisjoint(indices[1])
    assert len(set(indices[0])) > 2 * BATCHES // 3


def random_rank_ends(seed):
    """Return ten triples of a signal, a rank and a number of batches, in increasing order of the batches."""
    generator = random.Random(seed)
    # Rank 0 alone ends at a known batch after SIGTERM.
    return [
        [name, generator.randrange(2) if name == "SIGKILL" else 0, step] for name, step in random_ends(seed, BATCHES)
    ]


def test_ranks_killed_ten_times_end_with_the_weights_of_uninterrupted_ranks(fork, uninterrupted, tmp_path):
    ranks = Ranks(fork, tmp_path / "killed", uninterrupted.library, random_rank_ends(seed=4))
    run_until_done = {"ddp": run_torchrun_until_done, "accelerate": run_ranks_until_done}[uninterrupted.library]
    starts = run_until_done(ranks)
    assert [json.loads(line) for line in ranks.text("ended").splitlines()] == ranks.ends
    assert {(name, rank) for name, rank, _ in ranks.ends} == {("SIGKILL", 0), ("SIGKILL", 1), ("SIGTERM", 0)}
    for started, (name, rank, batches) in zip(starts[1:], ranks.ends, strict=True):
        # Rank 0 may or may not have saved the batch after which rank 1 is killed.
        expected = {"SIGTERM": {batches}, "SIGKILL": {batches - 1, batches} if rank else {batches - 1}}
        assert started in expected[name]
    for seen, once in zip(ranks.seen, uninterrupted.seen, strict=True):
        assert set(seen) == set(once)
    assert torch.equal(ranks.weights, uninterrupted.weights)
    assert ranks.text("random-0") != ranks.text("random-1"), "with equal random numbers, dropout masks are equal"


def run_ranks_until_done(ranks):
    """Start the ranks after each end until training is done; return the batches done at the starts."""
    starts = []
    for name, rank, _ in [*ranks.ends, (None, None, None)]:
        run = ranks.start()
        starts += started_at(run.log)
        if name is None:
            assert run.codes == [0, 0], run.log
        else:
            assert run.codes[rank] == EXIT_CODES[name], run.log
            assert run.codes[1 - rank] != 0, run.log
    return starts


def run_torchrun_until_done(ranks):
    """Start ``torchrun`` after each SIGTERM until training is done; return the batches done at the starts."""
    starts = []
    for last in [False] * [name for name, *_ in ranks.ends].count("SIGTERM") + [True]:
        run = ranks.start_torchrun()
        starts += started_at(run.log)
        assert (run.codes == [0]) == last, run.log
        assert "Unable to shutdown process" not in run.log, "a rank has waited for SIGKILL"
    return starts


def started_at(log):
    return [done for event, done in progress_events(log) if event == "start"]


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


def test_sharded_model_is_rejected(tmp_path):
    sharded = type("FullyShardedDataParallel", (torch.nn.Sequential,), {})(torch.nn.Linear(1, 1))
    with pytest.raises(ValueError, match="model: got 'a sharded state"):
        checkpoint(model=torch.nn.Sequential(sharded), path=tmp_path)


def test_ranks_on_a_machine_divide_the_share_of_the_job(as_rank_1, tmp_path, monkeypatch):
    (tmp_path / "control").write_text('{"devices": 3}')
    monkeypatch.setenv("PACELINE_CONTROL", str(tmp_path / "control"))
    assert CpuShare().read() == 1.5
