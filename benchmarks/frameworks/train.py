"""Training script of the job: one function per library, on generated data. The job has only ``paceline.train``."""

from __future__ import annotations

import argparse
import contextlib
import os
import warnings
from typing import Any

import numpy as np

from paceline.train import Kept, checkpoint, output_dir, report, track, track_epochs

FEATURES, BATCH, HELD_OUT = 64, 512, 8192
Arrays = tuple[np.ndarray, np.ndarray]


def generate_data(rows: int, features: int = FEATURES) -> tuple[Arrays, Arrays]:
    """Return features and targets for training and for validation."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((rows + HELD_OUT, features), dtype=np.float32)
    y = (np.sin(x[:, 0]) + x[:, 1] * x[:, 2] + 0.1 * x[:, 3]).astype(np.float32)
    return (x[:rows], y[:rows]), (x[rows:], y[rows:])


def train_xgboost(steps: int, epochs: int) -> None:
    """Train boosted trees; a step is a round, and each round is evaluated."""
    import xgboost

    from paceline.train.adapters.xgboost import PacelineCallback

    (x, y), (valid_x, valid_y) = generate_data(200_000)
    xgboost.train(
        {"max_depth": 6, "learning_rate": 0.1},
        xgboost.DMatrix(x, y),
        num_boost_round=steps,
        evals=[(xgboost.DMatrix(valid_x, valid_y), "valid")],
        verbose_eval=False,
        callbacks=[PacelineCallback()],
    ).save_model(output_dir() / "model.ubj")


def train_lightgbm(steps: int, epochs: int) -> None:
    """Train boosted trees; a step is a round, and each round is evaluated."""
    import lightgbm

    from paceline.train.adapters.lightgbm import PacelineCallback

    (x, y), (valid_x, valid_y) = generate_data(200_000)
    data = lightgbm.Dataset(x, y)
    lightgbm.train(
        {"num_leaves": 63, "learning_rate": 0.1, "verbose": -1},
        data,
        num_boost_round=steps,
        valid_sets=[lightgbm.Dataset(valid_x, valid_y, reference=data)],
        callbacks=[PacelineCallback()],
    ).save_model(output_dir() / "model.txt")


def train_sklearn(steps: int, epochs: int, threads: int | None = None) -> None:
    """Train a multi-layer perceptron; a step is a call of ``partial_fit``, and each epoch is validated."""
    from sklearn.neural_network import MLPRegressor
    from threadpoolctl import threadpool_info, threadpool_limits

    from paceline.train.adapters import sklearn

    (x, y), (valid_x, valid_y) = generate_data(steps // epochs * BATCH)
    model = sklearn.checkpoint(MLPRegressor(hidden_layer_sizes=(512, 512), batch_size=BATCH, random_state=0))
    batches = [slice(start, start + BATCH) for start in range(0, len(x), BATCH)]
    loop = track(batches, epochs=epochs)
    with threadpool_limits(threads) if threads else contextlib.nullcontext():
        for rows in loop:
            model.partial_fit(x[rows], y[rows])
            if loop.epoch_end:
                report(r2=model.score(valid_x, valid_y))
        report(native_threads=max(pool["num_threads"] for pool in threadpool_info()))


def train_torch(steps: int, epochs: int, *, accelerated: bool = False) -> None:
    """Train a perceptron in a loop of its own, with ``track``; optionally with Accelerate."""
    import torch

    model, (loader, valid) = perceptron(), loaders(steps // epochs)
    optimizer = torch.optim.Adam(model.parameters())
    backward = torch.Tensor.backward
    if accelerated:
        from accelerate import Accelerator

        accelerator = Accelerator(cpu=True)
        backward = accelerator.backward
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    checkpoint(model=model, optimizer=optimizer)
    loop = track(loader, epochs=epochs)
    for x, y in loop:
        loss = torch.nn.functional.mse_loss(model(x).squeeze(1), y)
        optimizer.zero_grad()
        backward(loss)
        optimizer.step()
        report(loss=loss)
        if loop.epoch_end:
            with torch.no_grad():
                losses = [torch.nn.functional.mse_loss(model(x).squeeze(1), y) for x, y in valid]
            report(valid_loss=torch.stack(losses).mean())


def train_accelerate(steps: int, epochs: int) -> None:
    """Train the perceptron with Accelerate and ``track``."""
    train_torch(steps, epochs, accelerated=True)


def train_epochs(steps: int, epochs: int) -> None:
    """Train the perceptron in nested loops, with a scheduler and the best model, as in the guide."""
    import torch

    model, (loader, valid) = perceptron(), loaders(steps // epochs)
    optimizer = torch.optim.Adam(model.parameters())
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    state = Kept(best=None)
    checkpoint(model=model, optimizer=optimizer, scheduler=scheduler, state=state)
    for _ in track_epochs(epochs):
        fit_epoch(model, optimizer, track(loader))
        error = mean_error(model, valid)
        scheduler.step(error)
        report(valid_loss=error)
        if state.best is None or error < state.best:
            state.best = error
            torch.save(model.state_dict(), output_dir() / "model.pt")


def train_once(steps: int, epochs: int) -> None:
    """Train the perceptron for one epoch, with a validation that takes as long as those of all ``epochs``."""
    import torch

    model, (loader, valid) = perceptron(), loaders(steps)
    valid = torch.utils.data.DataLoader(torch.utils.data.ConcatDataset([valid.dataset] * epochs), BATCH)
    optimizer = torch.optim.Adam(model.parameters())
    checkpoint(model=model, optimizer=optimizer)
    for _ in track_epochs(1):
        fit_epoch(model, optimizer, track(loader, validation=valid))
        report(valid_loss=mean_error(model, valid))
    torch.save(model.state_dict(), output_dir() / "model.pt")


def fit_epoch(model: Any, optimizer: Any, batches: Any) -> None:
    """Train one epoch in a plain loop."""
    from torch.nn.functional import mse_loss

    for x, y in batches:
        optimizer.zero_grad()
        loss = mse_loss(model(x).squeeze(1), y)
        loss.backward()
        optimizer.step()
        report(loss=loss)


def mean_error(model: Any, loader: Any) -> float:
    """Return the mean squared error of the model."""
    import torch

    with torch.no_grad():
        losses = [torch.nn.functional.mse_loss(model(x).squeeze(1), y) for x, y in loader]
    return torch.stack(losses).mean().item()


def train_lightning(steps: int, epochs: int) -> None:
    """Train the perceptron with Lightning's ``Trainer``, which validates after each epoch."""
    import lightning
    import torch

    from paceline.train.adapters.lightning import PacelineCallback

    class Regression(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = perceptron()

        def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
            return torch.nn.functional.mse_loss(self.model(batch[0]).squeeze(1), batch[1])

        def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
            self.log("valid_loss", self.training_step(batch, index))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters())

    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = lightning.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        callbacks=[PacelineCallback()],
        enable_checkpointing=False,
        num_sanity_val_steps=0,
        **quiet,
    )
    trainer.fit(Regression(), *loaders(steps // epochs))


def train_huggingface(steps: int, epochs: int) -> None:
    """Train a small GPT-2 from scratch with the ``Trainer``, which evaluates after each epoch."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    from paceline.train.adapters.huggingface import PacelineCallback

    words, length, batch = 1000, 64, 16
    rows = torch.randint(0, words, (steps // epochs * batch + 256, length))
    data = [{"input_ids": row, "labels": row} for row in rows]
    model = GPT2LMHeadModel(GPT2Config(vocab_size=words, n_positions=length, n_embd=128, n_layer=2, n_head=4))
    arguments = TrainingArguments(
        str(output_dir() / "trainer"),
        num_train_epochs=epochs,
        per_device_train_batch_size=batch,
        per_device_eval_batch_size=64,
        eval_strategy="epoch",
        save_strategy="no",
        logging_steps=20,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
    )
    callbacks = [PacelineCallback()]
    Trainer(model, arguments, train_dataset=data[:-256], eval_dataset=data[-256:], callbacks=callbacks).train()


def train_keras(steps: int, epochs: int) -> None:
    """Train the perceptron with ``Model.fit``, which validates after each epoch."""
    from paceline.train.adapters.keras import PacelineCallback  # selects the backend, so import it before Keras

    import keras  # isort: skip

    train, valid = generate_data(steps // epochs * BATCH)
    dense = [keras.layers.Dense(1024, activation="relu") for _ in range(2)]
    model = keras.Sequential([keras.Input((FEATURES,)), *dense, keras.layers.Dense(1)])
    model.compile("adam", "mse")
    callbacks = [PacelineCallback()]
    model.fit(*train, BATCH, epochs=epochs, validation_data=valid, verbose=0, callbacks=callbacks)


def perceptron() -> Any:
    """Return a perceptron with two hidden layers."""
    from torch import nn

    return nn.Sequential(nn.Linear(FEATURES, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1))


def loaders(batches: int) -> tuple[Any, Any]:
    """Return the loaders of training and validation; an epoch has ``batches`` batches."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(0)
    train, valid = (TensorDataset(*map(torch.from_numpy, arrays)) for arrays in generate_data(batches * BATCH))
    return DataLoader(train, BATCH, shuffle=True), DataLoader(valid, BATCH)


TRAININGS = {name.removeprefix("train_"): value for name, value in globals().items() if name.startswith("train_")}

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("library", choices=TRAININGS)
    parser.add_argument("--steps", type=int, required=True, help="number of steps, a multiple of the epochs")
    parser.add_argument("--epochs", type=int, required=True, help="number of epochs, for a library that has any")
    parser.add_argument("--threads", type=int, default=None, help="limit of native threads, for scikit-learn")
    chosen = parser.parse_args()
    warnings.filterwarnings("ignore")
    os.environ["HF_HUB_OFFLINE"] = "1"
    limit = {"threads": chosen.threads} if chosen.threads else {}
    TRAININGS[chosen.library](chosen.steps, chosen.epochs, **limit)
