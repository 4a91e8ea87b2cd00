"""Trainings with Lightning whose callbacks, hooks and metrics have a state; ``test_lightning_state`` starts them.

The option ``training`` names one of ``TRAININGS``. At the end of each epoch, ``seen`` gets the metrics, the learning
rates, and which parameters are trained.
"""

import json
import warnings

import lightning
import torch
import torchmetrics
from lightning.pytorch.callbacks import BackboneFinetuning, Callback, EarlyStopping
from lightning.pytorch.tuner import Tuner
from torch.utils.data import DataLoader, TensorDataset

from paceline.train import output_dir
from paceline.train.adapters.lightning import PacelineCallback

from .with_lightning import EndingCallback

warnings.filterwarnings("ignore")


class Regression(lightning.LightningModule):
    def __init__(self, lr=0.05):
        super().__init__()
        self.lr = lr
        self.backbone = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU())
        self.head = torch.nn.Sequential(torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))

    def predict(self, x):
        return self.head(self.backbone(x)).squeeze(1)

    def training_step(self, batch, batch_idx):
        loss = torch.nn.functional.mse_loss(self.predict(batch[0]), batch[1])
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", torch.nn.functional.mse_loss(self.predict(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.Adam([one for one in self.parameters() if one.requires_grad], self.lr)


class HeadRegression(Regression):
    """Gives the optimizer the head alone."""

    def configure_optimizers(self):
        return torch.optim.Adam(self.head.parameters(), 0.05)


class OwnFinetuning(Callback):
    """Freezes the backbone, and trains it from the second epoch on. It saves no state."""

    def on_train_start(self, trainer, module):
        module.backbone.requires_grad_(False)

    def on_train_epoch_start(self, trainer, module):
        if trainer.current_epoch == 1:
            module.backbone.requires_grad_(True)
            trainer.optimizers[0].add_param_group({"params": list(module.backbone.parameters()), "lr": 0.01})


class Metrics(Regression):
    """Logs in all ways: reductions, metric objects, a collection whose metrics share a state, and by hand."""

    def __init__(self):
        super().__init__()
        self.error = torchmetrics.MeanSquaredError()
        squares = {"mse": torchmetrics.MeanSquaredError(), "rmse": torchmetrics.MeanSquaredError(squared=False)}
        self.errors = torchmetrics.MetricCollection(squares, prefix="train_")
        self.losses = torchmetrics.CatMetric()
        self.range = torchmetrics.MinMaxMetric(torchmetrics.MeanMetric())

    def on_train_epoch_start(self):
        self.log("epoch_start", float(self.current_epoch))

    def training_step(self, batch, batch_idx):
        prediction = self.predict(batch[0])
        loss = torch.nn.functional.mse_loss(prediction, batch[1])
        for reduction in ("mean", "min", "max", "sum"):
            self.log(f"loss_{reduction}", loss, on_step=True, on_epoch=True, reduce_fx=reduction)
        if batch_idx == 0:
            self.log("first_loss", loss, on_step=False, on_epoch=True)
        self.error(prediction, batch[1])
        self.log("error", self.error, on_step=True, on_epoch=True)
        self.errors.update(prediction, batch[1])
        self.log_dict(self.errors, on_step=False, on_epoch=True)
        self.losses.update(loss.detach())
        self.range.update(loss.detach())
        return loss

    def on_train_epoch_end(self):
        self.log("deviation", self.losses.compute().std())
        self.log_dict({f"range_{name}": value for name, value in self.range.compute().items()})
        self.losses.reset()


class BatchHooks(Regression):
    """Changes the state in the hooks that end a batch, and the learning rate after each batch."""

    def __init__(self):
        super().__init__()
        self.register_buffer("average", torch.zeros(1, 8))

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.average.mul_(0.9).add_(self.head[1].weight.detach(), alpha=0.1)

    def on_validation_end(self):
        self.average.add_(0.01)

    def on_train_epoch_start(self):
        self.average.mul_(0.5)

    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1, factor=0.8)
        return [optimizer], [{"scheduler": scheduler, "monitor": "val_loss", "interval": "step", "frequency": 3}]


class Accumulating(Regression):
    """Accumulates the gradients of three batches by manual optimization, with two optimizers."""

    automatic_optimization = False

    def training_step(self, batch, batch_idx):
        self.manual_backward(super().training_step(batch, batch_idx))
        backbone, head = self.optimizers()
        for optimizer, due in ((head, True), (backbone, batch_idx % 3 == 2)):
            if due:
                optimizer.step()
                optimizer.zero_grad()

    def configure_optimizers(self):
        return torch.optim.Adam(self.backbone.parameters(), 0.02), torch.optim.SGD(self.head.parameters(), 0.02)


TRAININGS = {
    "backbone finetuning": (HeadRegression, lambda: [BackboneFinetuning(1, lambda epoch: 1.3)]),
    "own finetuning": (HeadRegression, lambda: [OwnFinetuning()]),
    "early stopping": (
        Regression,
        lambda: [EarlyStopping("loss", min_delta=1.5, patience=0, check_on_train_epoch_end=True)],
    ),
    "metrics": (Metrics, list),
    "batch hooks": (BatchHooks, list),
    "accumulating": (Accumulating, list),
    "tuned": (Regression, list),
}


class NotingCallback(Callback):
    """Writes the metrics, the learning rates and the trained parameters at the end of each epoch."""

    def on_train_epoch_end(self, trainer, module):
        metrics = [{name: float(one) for name, one in sorted(trainer.callback_metrics.items())}]
        rates = [[group["lr"] for group in one.param_groups] for one in trainer.optimizers]
        trained = [name for name, one in module.named_parameters() if one.requires_grad]
        with (output_dir() / "seen").open("a") as seen:
            print(json.dumps([trainer.global_step, metrics, rates, trained]), file=seen)


def train(after_step, *, training):
    lightning.seed_everything(0, verbose=False)
    x = torch.randn(32, 4, generator=torch.Generator().manual_seed(1))
    data = TensorDataset(x, x.square().sum(1))
    create_module, create_callbacks = TRAININGS[training]
    model = create_module()
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    trainer = lightning.Trainer(
        callbacks=[
            PacelineCallback(every_s=0),
            EndingCallback(after_step),
            *create_callbacks(),
            NotingCallback(),
        ],
        max_epochs=4,
        val_check_interval=3,
        enable_checkpointing=False,
        **quiet,
    )
    loaders = DataLoader(data, 4, shuffle=True), DataLoader(data, 16)
    if training == "tuned":
        Tuner(trainer).lr_find(model, *loaders, num_training=5)
    trainer.fit(model, *loaders)
    return {name: one.tolist() for name, one in model.state_dict().items()}
