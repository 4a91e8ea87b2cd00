"""Keras with the callback: progress, early stop, and the same weights after a kill.

``with_keras.py`` is the training; the processes and signals are real.
"""

import numpy as np
import pytest
import torch

from paceline.train import report
from paceline.train.adapters.keras import PacelineCallback, keras

from .conftest import CODES, random_ends

BATCHES = 24  # three epochs of eight
EARLY, LATER = {"early_stopping": True}, {"fit": {"initial_epoch": 2}}
SCENARIOS = {
    "plain": {},
    "plain killed": {"ends": random_ends(3, BATCHES)},
    "later epoch": LATER,
    "later epoch killed": LATER | {"ends": [["SIGKILL", 18], ["SIGTERM", 20]]},
    "early stopping": EARLY,
    "stopped": {"stop": 10},
    "stopped killed": {"stop": 10, "ends": [["SIGTERM", 10]]},
}


@pytest.fixture(scope="module")
def trainings(train_all):
    return train_all("keras", SCENARIOS)


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name.endswith("killed")])
def test_killed_training_ends_with_the_same_weights_and_validation(trainings, name):
    killed, once = trainings[name], trainings[name.removesuffix(" killed")]
    assert killed.codes == [CODES[one] for one, _ in SCENARIOS[name]["ends"]] + [0]
    assert all(torch.equal(killed.weights[key], once.weights[key]) for key in once.weights)
    assert killed.progress[-1][-1].metrics["val_loss"] == once.progress[-1][-1].metrics["val_loss"]


def test_scenarios_end_with_different_weights(trainings):
    weights = [trainings[name].weights["0"] for name in SCENARIOS if not name.endswith("killed")]
    assert len({str(one.tolist()) for one in weights}) == len(weights)


def test_progress_counts_batches_and_contains_the_metrics(trainings):
    (plain,), (later,) = trainings["plain"].progress, trainings["later epoch"].progress
    assert (plain[0].event, plain[0].done, plain[0].total) == ("start", 0, BATCHES)
    assert (plain[-1].event, plain[-1].done, plain[-1].total) == ("finish", BATCHES, BATCHES)
    assert (later[-1].done, later[-1].total) == (8, 8)
    assert plain[-1].loss > 0
    assert set(plain[-1].metrics) == {"mae", "val_loss", "val_mae"}


@pytest.mark.parametrize(("name", "batches"), [("stopped", 11), ("early stopping", 16)])
def test_training_stopped_by_paceline_or_the_library_ends_at_100_percent(trainings, name, batches):
    (progress,) = trainings[name].progress
    assert (progress[-1].event, progress[-1].done, progress[-1].total) == ("finish", batches, batches)
    assert len(trainings[name].seen) == batches


def make_model():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def test_data_of_unknown_length_is_rejected():
    batch = np.zeros((1, 1))
    with pytest.raises(ValueError, match="steps_per_epoch: got None, expected the number of batches"):
        make_model().fit(((batch, batch) for _ in range(2)), callbacks=[PacelineCallback()], verbose=0)


def test_model_can_be_trained_again_in_the_same_process(capsys, monkeypatch):
    monkeypatch.setenv("PACELINE_PROGRESS", "lines")
    model, callback = make_model(), PacelineCallback()
    for _ in range(2):
        model.fit(np.zeros((4, 1)), np.zeros(4), batch_size=2, epochs=2, callbacks=[callback], verbose=0)
    report(auc=0.5)
    assert capsys.readouterr().out.count('"done":4,"total":4,"epoch":1,"epochs":2,"event":"finish"') == 2
