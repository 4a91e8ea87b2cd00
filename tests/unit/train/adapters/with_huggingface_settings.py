"""Trainings with the Hugging Face ``Trainer`` and its own settings, started by ``test_huggingface_settings``.

Options: ``arguments``, the training arguments of the setting; ``early_stopping``, whether the training ends when the
loss no longer falls. ``seen`` gets each batch. The result has the weights, what
the Trainer has logged, and the best checkpoint.
"""

from pathlib import Path

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    EarlyStoppingCallback,
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

from paceline.train import output_dir
from paceline.train.adapters.huggingface import PacelineCallback


class EndingCallback(TrainerCallback):
    """Ends the process at the end of a step."""

    def __init__(self, after_step):
        self.after_step = after_step

    def on_step_end(self, args, state, control, **kwargs):
        self.after_step(state.global_step)


class RecordedTrainer(Trainer):
    def training_step(self, model, inputs, *arguments):
        with (output_dir() / "seen").open("a") as seen:
            print(self.state.global_step, inputs["input_ids"].tolist(), file=seen)
        return super().training_step(model, inputs, *arguments)


def collate(rows):
    ids = [torch.tensor(row["input_ids"]) for row in rows]
    return {"input_ids": pad_sequence(ids, True), "labels": pad_sequence(ids, True, -100)}


def train(after_step, *, arguments, early_stopping=False):
    set_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=40, n_positions=8, n_embd=8, n_layer=1, n_head=1))
    data = [{"input_ids": [k, (k * 7) % 40, *range(k % 6)]} for k in range(30)]
    callbacks = [EndingCallback(after_step), PacelineCallback(every_s=0)]
    if early_stopping:
        callbacks.append(EarlyStoppingCallback(2, 10.0))
    args = TrainingArguments(
        str(output_dir() / "trainer"),
        **{
            "num_train_epochs": 2,
            "per_device_train_batch_size": 4,
            "learning_rate": 0.05,
            "warmup_steps": 3,
            "logging_steps": 2,
            "eval_strategy": "steps",
            "eval_steps": 3,
            "save_strategy": "no",
            "metric_for_best_model": "eval_loss",
            "use_cpu": True,
            "report_to": [],
            "disable_tqdm": True,
            **arguments,
        },
    )
    trainer = RecordedTrainer(model, args, collate, data, data[:5], callbacks=callbacks)
    trainer.train()
    best = trainer.state.best_model_checkpoint
    logged = [
        {name: value for name, value in one.items() if not name.endswith(("_runtime", "_per_second"))}
        for one in trainer.state.log_history
    ]
    return {
        "weights": {name: one.tolist() for name, one in model.state_dict().items()},
        "logged": logged,
        "best": best and str(Path(best).relative_to(output_dir())),
        "exists": best and Path(best).is_dir(),
    }
