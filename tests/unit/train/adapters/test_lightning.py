"""Lightning's ``Trainer`` with the callback: progress, early stop, and the same weights after a kill.

``with_lightning.py`` is the training; the processes and signals are real.
"""

import lightning
import pytest
from lightning.pytorch.demos.boring_classes import BoringModel

from paceline.testing.adapter_contract import AdapterContract
from paceline.train.adapters.lightning import PacelineCallback

from .conftest import expected_codes, random_ends, seen

BATCHES = 24  # three epochs of eight


ACCUMULATED = {"trainer": {"accumulate_grad_batches": 3, "val_check_interval": 3}}
HOOKED = {"epoch_hook": True, "trainer": {"max_epochs": 4}}
EARLY, STOPPED = {"early_stopping": True}, {"stop": 10}
SCENARIOS = {
    "plain": {},
    "plain killed": {"ends": random_ends(7, BATCHES)},
    "accumulated": ACCUMULATED,
    "accumulated killed": ACCUMULATED | {"ends": [["SIGKILL", 7], ["SIGKILL", 9]]},
    "epoch hook": HOOKED,
    "epoch hook killed": HOOKED | {"ends": [["SIGTERM", 3], ["SIGTERM", 7], ["SIGTERM", 12]]},
    "early stopping": EARLY,
    "early stopping killed": EARLY | {"ends": [["SIGTERM", 7]]},
    "stopped": STOPPED,
    "stopped killed": STOPPED | {"ends": [["SIGTERM", 10]]},
}


@pytest.fixture(scope="module")
def trainings(train_all):
    return train_all("lightning", SCENARIOS)


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name.endswith("killed")])
def test_killed_training_ends_with_the_same_weights(trainings, name):
    killed, once = trainings[name], trainings[name.removesuffix(" killed")]
    assert killed.codes == expected_codes(SCENARIOS[name])
    assert killed.result == once.result


def test_scenarios_end_with_different_weights(trainings):
    results = [trainings[name].result for name in SCENARIOS if not name.endswith("killed")]
    assert len(set(results)) == len(results)


def test_training_repeats_only_the_batches_after_the_last_checkpoint(trainings):
    started = [progress[0].done for progress in trainings["plain killed"].progress[1:]]
    # The script sends the signal at the start of a batch; after SIGTERM, the batch is completed and saved.
    done = [step + (one == "SIGTERM") for one, step in SCENARIOS["plain killed"]["ends"]]
    assert started == done


def test_progress_counts_optimizer_steps_and_contains_loss_and_metrics(trainings):
    (plain,), (accumulated,) = trainings["plain"].progress, trainings["accumulated"].progress
    assert (plain[0].event, plain[0].done, plain[0].total) == ("start", 0, BATCHES)
    assert (plain[-1].event, plain[-1].done, plain[-1].total) == ("finish", BATCHES, BATCHES)
    assert (accumulated[-1].done, accumulated[-1].total) == (9, 9)
    assert plain[-1].loss > 0
    assert set(plain[-1].metrics) == {"val_loss"}
    assert [one.epoch for one in plain] == sorted(one.epoch for one in plain)


@pytest.mark.parametrize(("name", "batches"), [("stopped", 11), ("early stopping", 16)])
def test_training_stopped_by_paceline_or_the_library_ends_at_100_percent(trainings, name, batches):
    (progress,) = trainings[name].progress
    assert (progress[-1].event, progress[-1].done, progress[-1].total) == ("finish", batches, batches)
    assert len(seen(trainings[name])) == batches


QUIET = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "accelerator": "cpu"}


def test_training_without_a_limit_is_rejected():
    trainer = lightning.Trainer(callbacks=[PacelineCallback()], max_epochs=-1, **QUIET)
    with pytest.raises(ValueError, match=r"max_epochs: got -1, expected a limit such as Trainer\(max_epochs=20\)"):
        trainer.fit(BoringModel())


def test_several_processes_are_rejected():
    trainer = lightning.Trainer(callbacks=[PacelineCallback()], devices=2, strategy="ddp_spawn", **QUIET)
    with pytest.raises(ValueError, match="devices: got '2 processes', expected one process"):
        trainer.callbacks[0].setup(trainer, BoringModel(), "fit")


class TestContract(AdapterContract):
    steps = BATCHES

    def train(self, after_step, *, other=False):
        from .with_lightning import train

        return train(after_step, rate=0.01 if other else 0.05, at_end=True)
