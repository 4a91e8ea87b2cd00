"""Calls of the Hugging Face ``Trainer.train`` that begin or end in another way, in this process.

An exception ends training as a signal ends a process.
"""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
import transformers
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import HPSearchBackend

from paceline.train import _session
from paceline.train.adapters.huggingface import PacelineCallback

ROWS = [{"x": torch.tensor([k / 20]), "labels": torch.tensor([k / 10])} for k in range(20)]


class Killed(BaseException):
    pass


class KillingCallback(TrainerCallback):
    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            raise Killed


class Line(torch.nn.Module):
    """Runs out of memory, as on a GPU, after ``fails`` batches, or if a training batch has more than ``rows`` rows."""

    fails = None

    def __init__(self, rows=20, hidden=1):
        super().__init__()
        self.rows, self.batches = rows, 0
        self.layers = torch.nn.Sequential(torch.nn.Linear(1, hidden), torch.nn.Linear(hidden, 1))

    def get_input_embeddings(self):
        return self.layers[0]

    def forward(self, x, labels):
        self.batches += 1
        if len(x) > self.rows or self.batches - 1 == self.fails:
            raise RuntimeError("CUDA out of memory. Tried to allocate 2 GiB")
        prediction = self.layers(x.unsqueeze(1)).squeeze(1)
        return {"loss": (prediction - labels).square().mean(), "logits": prediction}


def weights(model):
    return [one.tolist() for one in model.parameters()]


@pytest.fixture
def make_trainer(tmp_path, restart_process, recorder):
    """Return a function that makes a ``Trainer`` of 15 steps, in a new process unless it gets the callbacks."""
    recorder.interval_s = 0.0

    def make(name, model=None, callbacks=None, killed=None, **options):
        if callbacks is None:
            restart_process().trainings = recorder
            recorder.shown.clear()
            callbacks = [PacelineCallback(path=tmp_path / name, every_s=0)]
        torch.manual_seed(0)
        model_init = options.pop("model_init", None)
        settings = {"num_train_epochs": 3, "per_device_train_batch_size": 4, "learning_rate": 0.05, **options}
        arguments = TrainingArguments(
            str(tmp_path / f"{name}-trainer"),
            **{"save_strategy": "no", "report_to": [], "use_cpu": True, "disable_tqdm": True, **settings},
        )
        callbacks = [*callbacks, KillingCallback(killed)]
        model = None if model_init else (model or Line)()
        return Trainer(model, arguments, train_dataset=ROWS, callbacks=callbacks, model_init=model_init)

    return make


@pytest.fixture
def train(make_trainer, recorder):
    def run(*arguments, resumed=None, **options):
        trainer = make_trainer(*arguments, **options)
        try:
            trainer.train(resume_from_checkpoint=resumed)
        except Killed:
            assert options["killed"]
        return SimpleNamespace(trainer=trainer, weights=weights(trainer.model), events=list(recorder.events))

    return run


def test_training_with_smaller_batches_after_an_error_reports_and_saves(tmp_path, train):
    options = {"auto_find_batch_size": True, "per_device_train_batch_size": 8}
    once = train("once", partial(Line, rows=4), **options)
    assert ("start", 0, 15) in once.events
    assert {done for event, done, _ in once.events if event == "checkpoint"} == set(range(1, 16))
    assert _session.current.loops_started == 1
    train("killed", partial(Line, rows=4), killed=8, **options)
    resumed = train("killed", partial(Line, rows=4), **options)
    assert resumed.events[0] == ("start", 7, 15)
    assert resumed.weights == once.weights
    assert [folder.name for folder in tmp_path.glob("killed/*")] == ["training-0"]


def test_error_after_a_restart_begins_again_from_the_checkpoint(train, monkeypatch):
    options = {"auto_find_batch_size": True, "killed": 8}
    train("killed", **options)
    monkeypatch.setattr(Line, "fails", 1)
    resumed = train("killed", auto_find_batch_size=True)
    starts = [done for event, done, _ in resumed.events if event == "start"]
    assert starts == [7, 7]
    assert resumed.events[-1][0] == "finish"
    assert resumed.trainer.state.global_step == resumed.trainer.state.max_steps == resumed.events[-1][1]


def test_checkpoint_of_the_trainer_counts_the_steps_that_are_left(tmp_path, train):
    once = train("once", save_strategy="steps", save_steps=5)
    saved = str(tmp_path / "once-trainer" / "checkpoint-5")
    continued = train("continued", resumed=saved)
    assert continued.events[0] == ("start", 0, 10)
    assert {total for _, _, total in continued.events} == {10}
    assert continued.weights == once.weights
    train("killed", resumed=saved, killed=9)
    resumed = train("killed", resumed=saved)
    assert resumed.events[0] == ("start", 3, 10)
    assert resumed.weights == once.weights


def test_trainers_may_share_a_callback(tmp_path, make_trainer, restart_process):
    def train_both(folder, callbacks):
        first = make_trainer(folder, Line, callbacks)
        second = make_trainer(folder, partial(Line, hidden=3), callbacks)
        first.train()
        second.train()
        return weights(first.model), weights(second.model)

    alone = train_both("alone", [])
    for _ in "first", "restarted":
        restart_process()
        assert train_both("shared", [PacelineCallback(path=tmp_path / "shared", every_s=0)]) == alone


def test_restart_of_an_ended_training_leaves_the_trainer_as_the_training_does(train):
    for _ in "first", "restarted":
        ended = train("ended", neftune_noise_alpha=5.0, per_device_train_batch_size=20)
        assert not ended.trainer.is_in_train
        assert not ended.trainer.model.get_input_embeddings()._forward_hooks


def test_search_with_other_parameters_after_a_restart_starts_each_trial_from_the_beginning(make_trainer, monkeypatch):
    monkeypatch.setattr(transformers.integrations, "hp_params", lambda trial: trial.params)

    def search(name, *trials):
        trainer = make_trainer(name, model_init=lambda trial: Line(hidden=trial.hidden if trial else 1))
        trainer.hp_search_backend, trainer.hp_name = HPSearchBackend.OPTUNA, None
        trainer.hp_space = lambda trial: trial.params
        found = []
        for number, (rate, hidden) in enumerate(trials):
            trainer.objective = None
            # Stands in for a trial of Optuna, which the tests do not install.
            trainer.train(trial=SimpleNamespace(number=number, params={"learning_rate": rate}, hidden=hidden))
            found.append(weights(trainer.model))
        return found

    first, others = [(0.1, 1), (0.01, 2)], [(0.001, 1), (0.01, 3)]
    undisturbed = search("first", *first)
    assert search("first", *first) == undisturbed
    assert search("first", *others) == search("others", *others) != undisturbed
