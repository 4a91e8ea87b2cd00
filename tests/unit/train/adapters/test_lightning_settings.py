"""Lightning's own callbacks and schedulers: a training killed at a random step goes on as an undisturbed one.

``with_lightning_settings.py`` is the training; the processes and signals are real.
"""

import json
import random
import shutil

import lightning
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset

from paceline.testing.adapter_contract import EXIT_CODES
from paceline.train.adapters.lightning import PacelineCallback

from .conftest import expected_codes, seen

SETTINGS = {
    "best": {"scheduler": "plateau", "callbacks": ["best"]},
    "best two": {"scheduler": "lambda", "callbacks": ["best 2", "rates"]},
    "patience": {"scheduler": "one cycle", "callbacks": ["best", "patience"]},
    "accumulation": {"scheduler": "cosine", "callbacks": ["best", "accumulation"]},
    "average": {"scheduler": "plateau", "callbacks": ["best", "average"]},
    "plateau of two": {"scheduler": "plateau of two", "callbacks": ["best"], "trainer": {"max_epochs": 4}},
    "limited": {"scheduler": "plateau", "callbacks": ["best"], "trainer": {"max_steps": 21}},
}


def create_scenarios():
    generator, scenarios = random.Random(4), {}
    for name, options in SETTINGS.items():
        options = options | {"trainer": {"max_epochs": 3} | options.get("trainer", {})}
        first, second = sorted(generator.sample(range(3, 20), 2))
        ends = [[generator.choice(list(EXIT_CODES)), step] for step in (first, second)]
        scenarios |= {name: options, f"{name} killed": options | {"ends": ends}}
    return scenarios


SCENARIOS = create_scenarios()


@pytest.fixture(scope="module")
def trainings(train_all):
    return train_all("lightning_settings", SCENARIOS)


@pytest.mark.parametrize("name", SETTINGS)
def test_killed_training_equals_an_undisturbed_one(trainings, name):
    killed, once = trainings[f"{name} killed"], trainings[name]
    assert killed.codes == expected_codes(SCENARIOS[f"{name} killed"])
    assert list(dict.fromkeys(seen(killed))) == seen(once)  # after SIGKILL, a batch is repeated
    rates = [(one.folder / "rates").read_text().splitlines() for one in (killed, once)]
    assert list(dict.fromkeys(rates[0])) == rates[1]
    assert killed.result == once.result


@pytest.mark.parametrize("name", SETTINGS)
def test_best_checkpoint_is_the_same_after_a_kill_and_exists(trainings, name):
    killed, once = (json.loads((trainings[one].folder / "history").read_text()) for one in (f"{name} killed", name))
    assert killed["scores"] == once["scores"]
    assert killed["best"][1] == once["best"][1]
    assert all(killed["exist"])


class Plain(lightning.LightningModule):
    """Stores no hyperparameters."""

    def __init__(self, lr, dropout=0.2, gamma=1.0):
        super().__init__()
        self.rate, self.gamma = lr, gamma
        self.layers = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Dropout(dropout), torch.nn.Linear(8, 1))

    def training_step(self, batch):
        loss = torch.nn.functional.mse_loss(self.layers(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), self.rate)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, self.gamma)]


def fit(folder, rows=32, clip=None, callbacks=(), **params):
    lightning.seed_everything(1, verbose=False)
    model = Plain(**{"lr": 0.1} | params)
    x = torch.randn(32, 3, generator=torch.Generator().manual_seed(1))[:rows]
    trainer = lightning.Trainer(
        max_epochs=2,
        callbacks=[PacelineCallback(path=folder, every_s=0), *callbacks],
        logger=False,
        enable_checkpointing=bool(callbacks),
        enable_progress_bar=False,
        enable_model_summary=False,
        accelerator="cpu",
        gradient_clip_val=clip,
    )
    trainer.fit(model, DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), 8))
    return model.layers[0].weight.detach()


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"dropout": 0.5}, "model.layers.1: Dropout(p=0.2"),
        ({"lr": 0.01}, "optimizers: "),
        ({"gamma": 0.5}, "scheduler 0: "),
        ({"clip": 0.01}, "clipped: "),
        ({"rows": 30}, "rows: 32, now 30"),
    ],
)
def test_training_with_other_settings_starts_from_the_beginning(tmp_path, restart_process, capsys, changed, named):
    alone = fit(tmp_path / "alone", **changed)
    restart_process()
    fit(tmp_path / "search")
    restart_process()
    assert torch.equal(fit(tmp_path / "search", **changed), alone)
    assert named in capsys.readouterr().err


def test_checkpoint_without_fingerprint_is_restored(tmp_path, restart_process, capsys):
    fit(tmp_path / "search")
    for point in (tmp_path / "search").rglob("point.json"):
        content = json.loads(point.read_text())
        del content["fingerprint"]
        point.write_text(json.dumps(content))
    restart_process()
    capsys.readouterr()
    fit(tmp_path / "search", lr=0.2)
    assert "resumed from" in capsys.readouterr().err


def test_model_checkpoint_whose_folder_is_gone_starts_again(tmp_path, restart_process, capsys):
    saved = tmp_path / "best"
    fit(tmp_path / "search", callbacks=[ModelCheckpoint(saved, monitor="loss")])
    shutil.rmtree(saved)
    restart_process()
    best = ModelCheckpoint(saved, monitor="loss")
    fit(tmp_path / "search", callbacks=[best])
    assert best.best_model_path == ""
    assert f"{saved} is gone: ModelCheckpoint starts again" in capsys.readouterr().err
