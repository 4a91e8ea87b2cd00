"""Trainings whose number of steps Lightning's settings change: progress, and the same training after a kill.

An exception ends training as a signal ends a process.
"""

import warnings
from functools import partial
from types import SimpleNamespace

import lightning
import pytest
import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping, GradientAccumulationScheduler, ModelCheckpoint
from torch.utils.data import DataLoader, Subset, TensorDataset

from paceline.train import stop_early
from paceline.train.adapters.lightning import PacelineCallback

warnings.filterwarnings("ignore")
ROWS = torch.arange(20.0).reshape(-1, 1)
DATA = TensorDataset(ROWS, ROWS / 10)


class Killed(BaseException):
    pass


class AfterBatchCallback(Callback):
    """Ends the process, or training, in a batch."""

    def __init__(self, killed=None, stopped=None):
        self.killed, self.stopped, self.batches = killed, stopped, 0

    def on_train_batch_end(self, *arguments):
        self.batches += 1
        if self.batches == self.stopped:
            stop_early()
        if self.batches == self.killed:
            raise Killed


class Line(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer, self.seen = torch.nn.Linear(1, 1), []

    def training_step(self, batch, batch_idx):
        self.seen.append((self.current_epoch, *batch[0].flatten().int().tolist()))
        return torch.nn.functional.mse_loss(self.layer(batch[0] / 20), batch[1])

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", torch.nn.functional.mse_loss(self.layer(batch[0] / 20), batch[1]))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.05)


class ReloadedLine(Line):
    """Has a new loader in each epoch, with its own generator, and more rows if it ``grows``."""

    def __init__(self, grows):
        super().__init__()
        self.grows = grows

    def train_dataloader(self):
        data = Subset(DATA, range(8 + 4 * self.current_epoch)) if self.grows else DATA
        return DataLoader(data, 4, shuffle=True, generator=torch.Generator().manual_seed(self.current_epoch))


@pytest.fixture
def train(restart_process, recorder):
    """Return a function that trains in a new process, and returns what it saw."""
    recorder.interval_s = 0.0

    def run(folder, *callbacks, module=None, killed=None, stopped=None, more_epochs=0, resumed=None, **options):
        restart_process().trainings = recorder
        recorder.shown.clear()
        torch.manual_seed(0)
        model = (module or Line)()
        trainer = lightning.Trainer(
            callbacks=[PacelineCallback(path=folder, every_s=0), *callbacks, AfterBatchCallback(killed, stopped)],
            logger=False,
            enable_checkpointing=any(isinstance(one, ModelCheckpoint) for one in callbacks),
            enable_progress_bar=False,
            enable_model_summary=False,
            accelerator="cpu",
            **options,
        )
        loaders = () if module else (DataLoader(DATA, 4, shuffle=True), DataLoader(DATA, 20))
        try:
            trainer.fit(model, *loaders, ckpt_path=resumed)
            if more_epochs:
                trainer.fit_loop.max_epochs += more_epochs
                trainer.fit(model, *loaders)
        except Killed:
            assert killed is not None
        weights = [float(one) for one in model.parameters()]
        return SimpleNamespace(seen=model.seen, weights=weights, events=recorder.events)

    return run


def totals(events):
    """Return the totals that a training without interruption has shown, in the order of its steps."""
    assert [event for event, _, _ in events if event in ("start", "finish")] == ["start", "finish"]
    done = [done for _, done, _ in events]
    assert done == sorted(done)
    return list(dict.fromkeys(total for _, _, total in events))


def check_resumed(killed, resumed, once, done):
    """Check that the training continued after ``done`` steps, each with a batch, and ended like an undisturbed one."""
    assert resumed.events[0][:2] == ("start", done)
    assert resumed.seen == once.seen[done:]
    assert killed.seen[:done] + resumed.seen == once.seen
    assert resumed.weights == once.weights


def early_stopping():
    return EarlyStopping("val_loss", patience=1, min_delta=1000.0)


@pytest.mark.parametrize("stopped", [None, 3])
def test_training_that_is_stopped_before_min_epochs_reports_and_saves_until_then(tmp_path, train, stopped):
    callbacks = () if stopped else (early_stopping(),)
    options = {"max_epochs": 8, "min_epochs": 6, "stopped": stopped}
    once = train(tmp_path / "once", *callbacks, **options)
    assert len(once.seen) == 30
    assert {done for _, done, _ in once.events} == set(range(31))
    killed = train(tmp_path / "killed", *callbacks, killed=14, **options)
    resumed = train(tmp_path / "killed", *callbacks, **options | {"stopped": None})
    check_resumed(killed, resumed, once, 13)
    assert train(tmp_path / "killed", *callbacks, **options).seen == []


def test_total_follows_loaders_that_grow(tmp_path, train):
    options = {"max_epochs": 4, "reload_dataloaders_every_n_epochs": 1}
    once = train(tmp_path / "once", module=partial(ReloadedLine, grows=True), **options)
    assert totals(once.events) == [8, 11, 13, 14]
    killed = train(tmp_path / "killed", module=partial(ReloadedLine, grows=True), killed=13, **options)
    resumed = train(tmp_path / "killed", module=partial(ReloadedLine, grows=True), **options)
    check_resumed(killed, resumed, once, 12)
    assert resumed.events[0] == ("start", 12, 14)


def test_training_with_another_loader_in_each_epoch_continues_with_its_order(tmp_path, train):
    options = {"max_epochs": 4, "reload_dataloaders_every_n_epochs": 1}
    once = train(tmp_path / "once", module=partial(ReloadedLine, grows=False), **options)
    killed = train(tmp_path / "killed", module=partial(ReloadedLine, grows=False), killed=13, **options)
    resumed = train(tmp_path / "killed", module=partial(ReloadedLine, grows=False), **options)
    check_resumed(killed, resumed, once, 12)


def test_second_fit_counts_its_own_steps_and_continues_with_its_order(tmp_path, train):
    once = train(tmp_path / "once", max_epochs=2, more_epochs=2)
    second = once.events[once.events.index(("start", 0, 10), 1) :]
    assert totals(second) == [10]
    train(tmp_path / "killed", max_epochs=2, more_epochs=2, killed=14)
    resumed = train(tmp_path / "killed", max_epochs=2, more_epochs=2)
    assert resumed.seen == once.seen[13:]
    assert resumed.weights == once.weights


@pytest.mark.parametrize("step", [5, 7, 10])
def test_checkpoint_of_the_library_is_continued_after_its_last_batch(tmp_path, train, step):
    every = ModelCheckpoint(tmp_path, filename="{step}", save_top_k=-1, every_n_train_steps=step)
    once = train(tmp_path / "once", every, max_epochs=3)
    continued = train(tmp_path / "continued", max_epochs=3, resumed=tmp_path / f"step={step}.ckpt")
    assert continued.seen == once.seen[step:]
    assert continued.weights == once.weights
    assert totals(continued.events) == [15 - step]


@pytest.mark.parametrize(("scheduling", "steps"), [({0: 4, 2: 1}, 14), ({0: 1, 2: 2}, 16)])
def test_total_follows_the_accumulation_of_each_epoch(tmp_path, train, scheduling, steps):
    once = train(tmp_path / "once", GradientAccumulationScheduler(dict(scheduling)), max_epochs=4)
    assert totals(once.events) == [steps]
    train(tmp_path / "killed", GradientAccumulationScheduler(dict(scheduling)), max_epochs=4, killed=12)
    resumed = train(tmp_path / "killed", GradientAccumulationScheduler(dict(scheduling)), max_epochs=4)
    assert resumed.weights == once.weights
    assert totals(resumed.events) == [steps]
