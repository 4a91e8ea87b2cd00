"""The Hugging Face ``Trainer`` with the callback: progress, early stop, and the same weights after a kill.

``with_huggingface.py`` is the training; the processes and signals are real.
"""

import resource

import pytest
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from paceline.testing.adapter_contract import AdapterContract
from paceline.train.adapters.huggingface import PacelineCallback

from .conftest import expected_codes, random_ends, seen

STEPS = 24  # three epochs of eight
ACCUMULATED = {"arguments": {"gradient_accumulation_steps": 3, "eval_strategy": "steps", "eval_steps": 2}}
SAVED_BEST = {"load_best_model_at_end": True, "save_strategy": "epoch", "metric_for_best_model": "eval_loss"}
EARLY, LIMITED = {"early_stopping": True, "arguments": SAVED_BEST}, {"arguments": {"max_steps": 13}}
SCENARIOS = {
    "plain": {},
    "plain killed": {"ends": random_ends(11, STEPS)},
    "accumulated": ACCUMULATED,
    "accumulated killed": ACCUMULATED | {"ends": [["SIGKILL", 2], ["SIGKILL", 4]]},
    "early stopping": EARLY,
    "early stopping killed": EARLY | {"ends": [["SIGTERM", 8]]},
    "limited": LIMITED,
    "limited killed": LIMITED | {"ends": [["SIGKILL", 9], ["SIGTERM", 13]]},
    "stopped": {"stop": 10},
    "stopped killed": {"stop": 10, "ends": [["SIGTERM", 10]]},
}


@pytest.fixture(scope="module")
def trainings(train_all):
    return train_all("huggingface", SCENARIOS)


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name.endswith("killed")])
def test_killed_training_ends_with_the_same_weights(trainings, name):
    killed, once = trainings[name], trainings[name.removesuffix(" killed")]
    assert killed.codes == expected_codes(SCENARIOS[name])
    assert killed.result == once.result


def test_scenarios_end_with_different_weights(trainings):
    results = [trainings[name].result for name in SCENARIOS if not name.endswith("killed")]
    assert len(set(results)) == len(results)


def test_progress_counts_optimizer_steps_and_contains_what_the_trainer_logs(trainings):
    (plain,), (accumulated,) = trainings["plain"].progress, trainings["accumulated"].progress
    assert (plain[0].event, plain[0].done, plain[0].total) == ("start", 0, STEPS)
    assert (plain[-1].event, plain[-1].done, plain[-1].total) == ("finish", STEPS, STEPS)
    assert (accumulated[-1].done, accumulated[-1].total) == (9, 9)
    assert plain[-1].loss > 0
    assert set(plain[-1].metrics) == {"grad_norm", "learning_rate", "eval_loss", "train_loss"}


@pytest.mark.parametrize(("name", "steps"), [("stopped", 10), ("early stopping", 16), ("limited", 13)])
def test_training_stopped_by_paceline_or_the_library_ends_at_100_percent(trainings, name, steps):
    (progress,) = trainings[name].progress
    assert (progress[-1].event, progress[-1].done, progress[-1].total) == ("finish", steps, steps)
    assert len(seen(trainings[name])) == steps


def make_trainer(folder, callbacks=None):
    model = GPT2LMHeadModel(GPT2Config(vocab_size=4, n_positions=4, n_embd=8, n_layer=1, n_head=1))
    args = TrainingArguments(str(folder), use_cpu=True, report_to=[], disable_tqdm=True, save_strategy="no")
    return Trainer(model, args, train_dataset=[{"input_ids": [1], "labels": [1]}], callbacks=callbacks)


def test_callback_that_was_added_after_the_constructor_is_rejected(tmp_path):
    trainer = make_trainer(tmp_path)
    trainer.add_callback(PacelineCallback())
    with pytest.raises(RuntimeError, match=r"pass it to Trainer\(callbacks="):
        trainer.train()


@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.pt"])
def test_training_continues_if_the_disk_is_full(tmp_path, capsys, file):
    class FullDiskCallback(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            if state.global_step == 1:  # from here on, files are limited to less than the size of this file
                (saved,) = tmp_path.glob(f"training-*/*/*/{file}")
                resource.setrlimit(resource.RLIMIT_FSIZE, (saved.stat().st_size - 1, resource.RLIM_INFINITY))

    trainer = make_trainer(tmp_path, [PacelineCallback(path=tmp_path, every_s=0), FullDiskCallback()])
    try:
        trainer.train()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert trainer.state.global_step == 3
    assert "cannot write a checkpoint" in capsys.readouterr().err
    assert [folder.name for folder in tmp_path.glob("training-*/*")] == ["checkpoint-000001"]


def test_several_processes_are_rejected(tmp_path, monkeypatch):
    trainer = make_trainer(tmp_path, [PacelineCallback()])
    monkeypatch.setattr(TrainingArguments, "world_size", 2)
    with pytest.raises(ValueError, match="world_size: got '2 processes', expected one process"):
        trainer.train()


class TestContract(AdapterContract):
    steps = STEPS

    def train(self, after_step, *, other=False):
        from .with_huggingface import train

        return train(after_step, arguments={"learning_rate": 0.01} if other else None)
