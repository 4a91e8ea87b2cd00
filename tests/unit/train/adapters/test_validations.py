"""The adapters forecast the duration of a validation in training steps. A pass without gradients costs 0.4 of one."""

import lightning
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from paceline.train.adapters import huggingface
from paceline.train.adapters import lightning as lightning_adapter
from paceline.train.adapters._steps import Steps
from paceline.train.adapters.keras import PacelineCallback

import keras  # isort: skip

ROWS = np.ones((240, 4), "float32"), np.ones((240, 1), "float32")
HELD_OUT = ROWS[0][:60], ROWS[1][:60]


@pytest.fixture
def forecasts(monkeypatch):
    """The forecasts that the adapters pass to their loops."""
    seen, start = [], Steps.start

    def recorded(self, *arguments, **options):
        seen.append(round(options["validation"], 6))
        start(self, *arguments, **options)

    monkeypatch.setattr(Steps, "start", recorded)
    return seen


class Endless(IterableDataset):
    def __iter__(self):
        while True:
            yield torch.ones(4), torch.ones(1)


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, batch_idx):
        return torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1])

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        self.training_step(batch, batch_idx)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)


def held_out(batch_size):
    return DataLoader(TensorDataset(*map(torch.from_numpy, HELD_OUT)), batch_size)


@pytest.mark.parametrize(
    ("options", "validation", "expected"),
    [
        ({}, held_out(20), 3 * 0.4 * 2),
        ({"num_sanity_val_steps": 0}, [held_out(20), held_out(10)], 2 * 3 * 0.4 * 2),
        ({"accumulate_grad_batches": 3}, held_out(20), 3 * 0.4 * 2 / 3),
        ({"limit_val_batches": 2}, held_out(20), 2 * 0.4 * 2),
        ({"check_val_every_n_epoch": 2, "max_epochs": 2}, held_out(20), 3 * 0.4 * 2 / 2),
        ({"limit_val_batches": 0}, held_out(20), 0),
        ({}, None, 0),
    ],
)
def test_lightning(forecasts, options, validation, expected):
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    trainer = lightning.Trainer(
        callbacks=[lightning_adapter.PacelineCallback()],
        enable_checkpointing=False,
        **{"max_epochs": 1, **quiet, **options},
    )
    trainer.fit(Module(), DataLoader(TensorDataset(*map(torch.from_numpy, ROWS)), 10), validation)
    assert forecasts == [pytest.approx(expected)]


def test_endless_validation_of_lightning_is_not_forecast(forecasts):
    """Lightning knows no end of it, so the training ends in it, by an error."""

    class Ending(Module):
        def validation_step(self, batch, batch_idx):
            if batch_idx == 5:
                raise KeyError("in the validation")

    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    trainer = lightning.Trainer(
        callbacks=[lightning_adapter.PacelineCallback()], max_epochs=1, enable_checkpointing=False, **quiet
    )
    loader = DataLoader(TensorDataset(*map(torch.from_numpy, ROWS)), 10)
    with pytest.raises(KeyError, match="in the validation"):
        trainer.fit(Ending(), loader, DataLoader(Endless(), 10))
    assert forecasts == [0]


@pytest.mark.parametrize(
    ("arguments", "sets", "expected"),
    [
        ({"eval_strategy": "epoch"}, 60, 60 / 8 * 0.4),
        ({"eval_strategy": "steps", "eval_steps": 2, "gradient_accumulation_steps": 2}, 60, 60 / 8 * 0.4 / 2),
        ({"eval_strategy": "epoch"}, {"first": 60, "second": 20}, 80 / 8 * 0.4),
        ({"eval_strategy": "no"}, 60, 0),
    ],
)
def test_hugging_face(forecasts, tmp_path, arguments, sets, expected):
    def rows(number):
        return [{"input_ids": [1, 2, 3], "labels": [1, 2, 3]}] * number

    trainer = Trainer(
        GPT2LMHeadModel(GPT2Config(vocab_size=8, n_positions=4, n_embd=4, n_layer=1, n_head=1)),
        TrainingArguments(
            str(tmp_path),
            num_train_epochs=1,
            per_device_train_batch_size=8,
            per_device_eval_batch_size=20,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            **arguments,
        ),
        train_dataset=rows(32),
        eval_dataset={name: rows(number) for name, number in sets.items()} if isinstance(sets, dict) else rows(sets),
        callbacks=[huggingface.PacelineCallback()],
    )
    trainer.train()
    assert forecasts == [pytest.approx(expected)]


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        return HELD_OUT[0][:10], HELD_OUT[1][:10]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"validation_data": HELD_OUT}, 6 * 0.4),
        ({"validation_data": HELD_OUT, "validation_batch_size": 20}, 3 * 0.4 * 2),
        ({"validation_data": HELD_OUT, "validation_steps": 2}, 2 * 0.4),
        ({"validation_data": HELD_OUT, "validation_freq": 2, "epochs": 2}, 6 * 0.4 / 2),
        ({"validation_data": Batches()}, 6 * 0.4),
        ({"validation_split": 0.25}, 6 * 0.4),
        ({}, 0),
    ],
)
def test_keras(forecasts, options, expected):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(*ROWS, **{"epochs": 1, "batch_size": 10, "verbose": 0, **options}, callbacks=[PacelineCallback()])
    assert forecasts == [pytest.approx(expected)]
