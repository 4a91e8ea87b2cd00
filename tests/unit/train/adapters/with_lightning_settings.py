"""Trainings with Lightning's own callbacks and schedulers, started by ``test_lightning_settings``.

Options: ``callbacks``, names in ``CALLBACKS``; ``scheduler``, a name in ``SCHEDULERS``; ``trainer``, further arguments.
``history`` gets the learning rate of each epoch and the best checkpoint. The loggers are Lightning's own.
"""

import json
import os
import warnings
from pathlib import Path

import lightning
import torch
from lightning.pytorch import callbacks
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset

from paceline.train.adapters.lightning import PacelineCallback

from .with_lightning import EndingCallback, Regression

warnings.filterwarnings("ignore")
CALLBACKS = {
    "best": lambda: callbacks.ModelCheckpoint(monitor="val_loss", filename="{epoch}-{step}"),
    "best 2": lambda: callbacks.ModelCheckpoint(monitor="val_loss", save_top_k=2, save_last=True),
    "patience": lambda: callbacks.EarlyStopping("val_loss", patience=2, min_delta=0.5),
    "rates": lambda: callbacks.LearningRateMonitor(),
    "accumulation": lambda: callbacks.GradientAccumulationScheduler({0: 1, 1: 2}),
    "average": lambda: callbacks.EMAWeightAveraging(),
}
SCHEDULERS = {
    "plateau": lambda one: {
        "scheduler": lr_scheduler.ReduceLROnPlateau(one, factor=0.7, patience=0, threshold=10.0),
        "monitor": "val_loss",
    },
    "plateau of two": lambda one: {
        "scheduler": lr_scheduler.ReduceLROnPlateau(one, factor=0.7, patience=0, threshold=10.0),
        "monitor": "val_loss",
        "frequency": 2,
    },
    "cosine": lambda one: lr_scheduler.CosineAnnealingLR(one, 5),
    "one cycle": lambda one: {"scheduler": lr_scheduler.OneCycleLR(one, 0.1, total_steps=40), "interval": "step"},
    "lambda": lambda one: lr_scheduler.LambdaLR(one, lambda epoch: 0.9**epoch),
}


class Scheduled(Regression):
    def __init__(self, scheduler):
        super().__init__(False)
        self.scheduler = scheduler

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), 0.05)
        return {"optimizer": optimizer, "lr_scheduler": SCHEDULERS[self.scheduler](optimizer)}

    def on_train_epoch_end(self):
        with Path("rates").open("a") as rates:
            print(self.current_epoch, self.optimizers().param_groups[0]["lr"], file=rates)


def train(after_step, *, scheduler, callbacks, trainer):
    lightning.seed_everything(0, verbose=False)
    x = torch.randn(30, 4, generator=torch.Generator().manual_seed(1))
    data = TensorDataset(torch.arange(30), x, x.square().sum(1))
    others = [CALLBACKS[name]() for name in callbacks]
    trainer = lightning.Trainer(
        callbacks=[PacelineCallback(every_s=0), EndingCallback(after_step), *others],
        **{
            "max_epochs": 5,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "accelerator": "cpu",
            "log_every_n_steps": 1,
            **trainer,
        },
    )
    model = Scheduled(scheduler)
    trainer.fit(model, DataLoader(data, 4, shuffle=True), DataLoader(data, 10))
    best = trainer.checkpoint_callback
    paths = sorted(best.best_k_models)
    content = {
        "best": [best.best_model_path and os.path.basename(best.best_model_path), float(best.best_model_score or 0)],
        "scores": sorted(float(score) for score in best.best_k_models.values()),
        "exist": [Path(path).is_file() for path in paths],
    }
    Path("history").write_text(json.dumps(content))
    return {name: one.tolist() for name, one in model.state_dict().items()}
