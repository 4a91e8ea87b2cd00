"""A training with the Hugging Face ``Trainer``, started by ``test_huggingface``.

Options: ``stop``, the step in which the training calls ``stop_early``; ``arguments``, further training arguments;
``early_stopping``, whether the training ends when the loss no longer falls.
"""

import torch
from starts import signal_at
from transformers import (
    EarlyStoppingCallback,
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

from paceline.train import output_dir, stop_early
from paceline.train.adapters.huggingface import PacelineCallback


class EndingCallback(TrainerCallback):
    """Ends the process or training at the end of a step."""

    def __init__(self, options, restarts):
        self.options, self.restarts = options, restarts

    def on_step_end(self, args, state, control, **kwargs):
        signal_at(self.options, self.restarts, state.global_step)

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        if state.global_step == self.options.get("stop"):
            stop_early()


class RecordedTrainer(Trainer):
    def training_step(self, model, inputs, *arguments):
        with (output_dir() / "seen").open("a") as seen:
            print(self.state.global_step, inputs["input_ids"][:, 0].tolist(), file=seen)
        return super().training_step(model, inputs, *arguments)


def train(options, restarts):
    set_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=40, n_positions=4, n_embd=8, n_layer=1, n_head=1))
    data = [{"input_ids": (row := [k, (k * 7) % 40, (k * 3) % 40]), "labels": row} for k in range(30)]
    arguments = {"num_train_epochs": 3, "save_strategy": "no", "logging_steps": 2, "eval_strategy": "epoch"}
    callbacks = [PacelineCallback(every_s=0), EndingCallback(options, restarts)]
    if options.get("early_stopping"):
        callbacks.append(EarlyStoppingCallback(1, 10.0))
    args = TrainingArguments(
        str(output_dir() / "trainer"),
        per_device_train_batch_size=4,
        learning_rate=0.02,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        **arguments | options.get("arguments", {}),
    )
    RecordedTrainer(model, args, train_dataset=data, eval_dataset=data[:5], callbacks=callbacks).train()
    torch.save(model.state_dict(), output_dir() / "model.pt")
