"""Lightning's callbacks, hooks and metrics with a state: a killed training goes on as an uninterrupted one.

``with_lightning_state.py`` is the training; the processes and signals are real.
"""

import lightning
import pytest
from lightning.pytorch.callbacks import BatchSizeFinder, LearningRateFinder, ModelPruning, StochasticWeightAveraging
from lightning.pytorch.demos.boring_classes import BoringModel

from paceline.testing.adapter_contract import EXIT_CODES
from paceline.train.adapters.lightning import PacelineCallback

from .conftest import seen

TRAININGS = [
    "backbone finetuning",
    "own finetuning",
    "early stopping",
    "metrics",
    "batch hooks",
    "accumulating",
    "tuned",
]
# Within an epoch, after its validations, and in the first batch of an epoch of eight batches.
ENDS = [["SIGTERM", 2], ["SIGKILL", 6], ["SIGTERM", 7], ["SIGKILL", 13], ["SIGKILL", 16]]
SCENARIOS = {
    f"{name}{suffix}": {"training": name, **options}
    for name in TRAININGS
    for suffix, options in (("", {}), (" killed", {"ends": ENDS}))
}


@pytest.fixture(scope="module")
def trainings(train_all):
    return train_all("lightning_state", SCENARIOS)


@pytest.mark.parametrize("name", TRAININGS)
def test_killed_training_ends_with_the_same_weights(trainings, name):
    killed, once = trainings[f"{name} killed"], trainings[name]
    assert killed.codes == [EXIT_CODES[one] for one, _ in ENDS] + [0]
    assert killed.result == once.result


@pytest.mark.parametrize("name", TRAININGS)
def test_killed_training_has_the_same_metrics_rates_and_trained_parameters_in_each_epoch(trainings, name):
    assert seen(trainings[f"{name} killed"]) == seen(trainings[name])


@pytest.mark.parametrize(
    ("callback", "accepted"),
    [
        (StochasticWeightAveraging(0.1), "another callback, such as WeightAveraging"),
        (ModelPruning("l1_unstructured", amount=0.3), "pruning before or after training"),
        (LearningRateFinder(), r"Tuner\(trainer\).lr_find\(model\) before fit"),
        (BatchSizeFinder(), r"Tuner\(trainer\).scale_batch_size\(model\) before fit"),
    ],
)
def test_callback_that_lightning_cannot_resume_is_rejected(callback, accepted):
    adapter = PacelineCallback()
    trainer = lightning.Trainer(
        callbacks=[adapter, callback],
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        accelerator="cpu",
    )
    with pytest.raises(ValueError, match=rf"callbacks: got '{type(callback).__name__}', expected {accepted}"):
        adapter.setup(trainer, BoringModel(), "fit")
