"""A training with Lightning's ``Trainer``, started by ``test_lightning``.

Options: ``stop``, the batch in which the training calls ``stop_early``; ``trainer``, further arguments of the
``Trainer``; ``epoch_hook``, whether the start of an epoch sets the scale of the loss in the module, and the accumulated
batches in a callback; ``early_stopping``, whether the training ends when the validation loss no longer falls.
"""

import warnings

import lightning
import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping, GradientAccumulationScheduler
from torch.utils.data import DataLoader, TensorDataset

from paceline.train import output_dir
from paceline.train.adapters.lightning import PacelineCallback

warnings.filterwarnings("ignore")


class Regression(lightning.LightningModule):
    def __init__(self, epoch_hook, rate=0.05):
        super().__init__()
        self.epoch_hook, self.rate = epoch_hook, rate
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))

    def on_train_epoch_start(self):
        self.scale = 1 + self.current_epoch if self.epoch_hook else 1

    def training_step(self, batch, batch_idx):
        index, x, y = batch
        with (output_dir() / "seen").open("a") as seen:
            print(self.trainer.current_epoch, batch_idx, index.tolist(), file=seen)
        return self.scale * torch.nn.functional.mse_loss(self.layers(x).squeeze(1), y)

    def validation_step(self, batch, batch_idx):
        _, x, y = batch
        self.log("val_loss", torch.nn.functional.mse_loss(self.layers(x).squeeze(1), y))

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), self.rate)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.7)]


class EndingCallback(Callback):
    """Ends the process or training at the start of a batch or at its end."""

    def __init__(self, after_step, at_end=False):
        self.after_step, self.at_end = after_step, at_end

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if not self.at_end:
            self.after_batches(trainer, batch_idx)

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if self.at_end:
            self.after_batches(trainer, batch_idx + 1)

    def after_batches(self, trainer, batches):
        done = trainer.current_epoch * trainer.num_training_batches + batches
        self.after_step(done)


def train(after_step, *, trainer=None, rate=0.05, epoch_hook=False, early_stopping=False, at_end=False):
    lightning.seed_everything(0, verbose=False)
    x = torch.randn(30, 4, generator=torch.Generator().manual_seed(1))
    data = TensorDataset(torch.arange(30), x, x.square().sum(1))
    callbacks = [PacelineCallback(every_s=0), EndingCallback(after_step, at_end)]
    if early_stopping:
        callbacks.append(EarlyStopping("val_loss", patience=0, min_delta=100.0))
    if epoch_hook:
        callbacks.append(GradientAccumulationScheduler({0: 1, 1: 2}))
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    limits = {"max_epochs": 3, "enable_checkpointing": False, **(trainer or {})}
    trainer = lightning.Trainer(callbacks=callbacks, **quiet, **limits)
    model = Regression(epoch_hook, rate)
    trainer.fit(model, DataLoader(data, 4, shuffle=True), DataLoader(data, 10))
    return {name: one.tolist() for name, one in model.state_dict().items()}
