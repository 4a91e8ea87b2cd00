"""A training with Lightning's ``Trainer``, started by ``test_lightning``.

Options: ``stop``, the batch in which the training calls ``stop_early``; ``trainer``, further arguments of the
``Trainer``; ``epoch_hook``, whether the start of an epoch sets the scale of the loss in the module, and the accumulated
batches in a callback; ``early_stopping``, whether the training ends when the validation loss no longer falls.
"""

import warnings

import lightning
import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping, GradientAccumulationScheduler
from starts import signal_at
from torch.utils.data import DataLoader, TensorDataset

from paceline.train import output_dir, stop_early
from paceline.train.adapters.lightning import PacelineCallback

warnings.filterwarnings("ignore")


class Regression(lightning.LightningModule):
    def __init__(self, epoch_hook):
        super().__init__()
        self.epoch_hook = epoch_hook
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
        optimizer = torch.optim.Adam(self.parameters(), 0.05)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.7)]


class EndingCallback(Callback):
    """Ends the process or training at the start of a batch."""

    def __init__(self, options, restarts):
        self.options, self.restarts = options, restarts

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        done = trainer.current_epoch * trainer.num_training_batches + batch_idx
        signal_at(self.options, self.restarts, done)
        if done == self.options.get("stop"):
            stop_early()


def train(options, restarts):
    lightning.seed_everything(0, verbose=False)
    x = torch.randn(30, 4, generator=torch.Generator().manual_seed(1))
    data = TensorDataset(torch.arange(30), x, x.square().sum(1))
    callbacks = [PacelineCallback(every_s=0), EndingCallback(options, restarts)]
    if options.get("early_stopping"):
        callbacks.append(EarlyStopping("val_loss", patience=0, min_delta=100.0))
    if options.get("epoch_hook"):
        callbacks.append(GradientAccumulationScheduler({0: 1, 1: 2}))
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    limits = {"max_epochs": 3, "enable_checkpointing": False, **options.get("trainer", {})}
    trainer = lightning.Trainer(callbacks=callbacks, **quiet, **limits)
    model = Regression(options.get("epoch_hook"))
    trainer.fit(model, DataLoader(data, 4, shuffle=True), DataLoader(data, 10))
    torch.save(model.state_dict(), output_dir() / "model.pt")
