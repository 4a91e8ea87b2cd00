"""The settings of the Hugging Face ``Trainer``: a training killed at a random step goes on as an undisturbed one.

``with_huggingface_settings.py`` is the training; the processes and signals are real.
"""

import json
import random

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
from transformers.trainer_utils import SchedulerType

from paceline.testing.adapter_contract import EXIT_CODES
from paceline.train.adapters.huggingface import PacelineCallback

from .conftest import expected_codes, seen

BEST = {"load_best_model_at_end": True, "save_strategy": "steps", "save_steps": 3, "save_total_limit": 1}
DATA = [
    {},
    {"train_sampling_strategy": "group_by_length"},
    {"train_sampling_strategy": "batch_rebalance"},
    {"train_sampling_strategy": "sequential"},
    {"accelerator_config": {"use_seedable_sampler": False}},
    {"accelerator_config": {"dispatch_batches": True, "split_batches": True}},
    {"train_sampling_strategy": "group_by_length", "gradient_accumulation_steps": 2},
    {"accelerator_config": {"even_batches": False}, "data_seed": 5, "dataloader_num_workers": 1},
]
SAVED = [({}, False), (BEST, False), ({"eval_on_start": True}, True), (BEST | {"save_strategy": "best"}, True)]
SCHEDULER = {
    "cosine_with_min_lr": {"min_lr": 1e-4},
    "cosine_warmup_with_min_lr": {"min_lr": 1e-4},
    "warmup_stable_decay": {"num_decay_steps": 3, "num_stable_steps": 4},
    "greedy": {"patience": 1},
}


def create_scenarios():
    """Return each scheduler with one of the other settings in turn, once undisturbed and once killed."""
    generator, scenarios = random.Random(3), {}
    for number, scheduler in enumerate(one.value for one in SchedulerType):
        saved, early_stopping = SAVED[number // 2 % len(SAVED)]
        arguments = {"lr_scheduler_type": scheduler, **DATA[number % len(DATA)], **saved}
        if scheduler in SCHEDULER:
            arguments["lr_scheduler_kwargs"] = SCHEDULER[scheduler]
        scenarios[scheduler] = {"arguments": arguments, "early_stopping": early_stopping}
        end = [generator.choice(list(EXIT_CODES)), generator.randint(1, 7)]
        scenarios[f"{scheduler} killed"] = scenarios[scheduler] | {"ends": [end]}
    return scenarios


SCENARIOS = create_scenarios()


@pytest.fixture(scope="module")
def trainings(train_all):
    return train_all("huggingface_settings", SCENARIOS)


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name.endswith("killed")])
def test_killed_training_equals_an_undisturbed_one(trainings, name):
    killed, once = trainings[name], trainings[name.removesuffix(" killed")]
    assert killed.codes == expected_codes(SCENARIOS[name])
    assert list(dict.fromkeys(seen(killed))) == seen(once)  # after SIGKILL, a step is repeated
    assert killed.result == once.result


@pytest.mark.parametrize(
    "name", [name for name, one in SCENARIOS.items() if "load_best_model_at_end" in one["arguments"]]
)
def test_best_checkpoint_exists_after_training(trainings, name):
    result = json.loads(trainings[name].result)
    assert result["best"].startswith("trainer/checkpoint-")
    assert result["exists"]


def train(folder, dropout=0.1, **arguments):
    torch.manual_seed(1)
    config = GPT2Config(vocab_size=4, n_positions=4, n_embd=8, n_layer=1, n_head=1, resid_pdrop=dropout)
    options = {"num_train_epochs": 2, "learning_rate": 0.1, "report_to": [], **arguments}
    args = TrainingArguments(
        str(folder.parent / "trainer"), use_cpu=True, disable_tqdm=True, save_strategy="no", **options
    )
    data = [{"input_ids": [k % 4, 1, 2], "labels": [k % 4, 1, 2]} for k in range(16)]
    callbacks = [PacelineCallback(path=folder, every_s=0)]
    trainer = Trainer(GPT2LMHeadModel(config), args, train_dataset=data, callbacks=callbacks)
    trainer.train()
    return trainer.model.lm_head.weight.detach()


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"dropout": 0.5}, "config.resid_pdrop: 0.1, now 0.5"),
        ({"learning_rate": 0.01}, "learning_rate: 0.1, now 0.01"),
        ({"adam_beta2": 0.9}, "adam_beta2: 0.999, now 0.9"),
        ({"train_sampling_strategy": "sequential"}, "train_sampling_strategy: random, now sequential"),
    ],
)
def test_training_with_other_settings_starts_from_the_beginning(tmp_path, restart_process, capsys, changed, named):
    alone = train(tmp_path / "alone", **changed)
    restart_process()
    train(tmp_path / "search")
    restart_process()
    assert torch.equal(train(tmp_path / "search", **changed), alone)
    assert named in capsys.readouterr().err


def test_settings_without_effect_are_not_another_training(tmp_path, restart_process, capsys):
    first = train(tmp_path / "search")
    restart_process()
    capsys.readouterr()
    changed = {"logging_steps": 1, "run_name": "again", "dataloader_num_workers": 1}
    assert torch.equal(train(tmp_path / "search", **changed), first)
    assert "resumed from" in capsys.readouterr().err


def test_checkpoint_without_fingerprint_is_restored(tmp_path, restart_process, capsys):
    train(tmp_path / "search")
    for point in (tmp_path / "search").rglob("point.json"):
        content = json.loads(point.read_text())
        del content["fingerprint"]
        point.write_text(json.dumps(content))
    restart_process()
    capsys.readouterr()
    train(tmp_path / "search", learning_rate=0.2)
    assert "resumed from" in capsys.readouterr().err


def test_ignore_data_skip_is_rejected(tmp_path):
    with pytest.raises(ValueError, match="ignore_data_skip: got True, expected False"):
        train(tmp_path / "search", ignore_data_skip=True)
