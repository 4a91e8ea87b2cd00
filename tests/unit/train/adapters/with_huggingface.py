"""A training with the Hugging Face ``Trainer``, started by ``test_huggingface``.

Options: ``stop``, the step in which the training calls ``stop_early``; ``arguments``, further training arguments;
``early_stopping``, whether the training ends when the loss no longer falls.
"""

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
    """Ends the process or training at the end of a step."""

    def __init__(self, after_step):
        self.after_step = after_step

    def on_step_end(self, args, state, control, **kwargs):
        self.after_step(state.global_step)


class RecordedTrainer(Trainer):
    def training_step(self, model, inputs, *arguments):
        with (output_dir() / "seen").open("a") as seen:
            print(self.state.global_step, inputs["input_ids"][:, 0].tolist(), file=seen)
        return super().training_step(model, inputs, *arguments)


def train(after_step, *, arguments=None, early_stopping=False):
    set_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=40, n_positions=4, n_embd=8, n_layer=1, n_head=1))
    data = [{"input_ids": (row := [k, (k * 7) % 40, (k * 3) % 40]), "labels": row} for k in range(30)]
    settings = {"num_train_epochs": 3, "save_strategy": "no", "logging_steps": 2, "eval_strategy": "epoch"}
    settings |= {"learning_rate": 0.02}
    callbacks = [PacelineCallback(every_s=0), EndingCallback(after_step)]
    if early_stopping:
        callbacks.append(EarlyStoppingCallback(1, 10.0))
    args = TrainingArguments(
        str(output_dir() / "trainer"),
        per_device_train_batch_size=4,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        **settings | (arguments or {}),
    )
    RecordedTrainer(model, args, train_dataset=data, eval_dataset=data[:5], callbacks=callbacks).train()
    return {name: one.tolist() for name, one in model.state_dict().items()}
