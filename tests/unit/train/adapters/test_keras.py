"""Keras with the callback: progress, early stop, and the same weights after a kill.

``with_keras.py`` is the training; the processes and signals are real.
"""

import inspect
import itertools
import json
import random
from importlib.util import find_spec

import numpy as np
import pandas
import pytest
import torch

from paceline.testing.adapter_contract import EXIT_CODES, AdapterContract
from paceline.train import _session, report, track
from paceline.train.adapters._keras_state import identity
from paceline.train.adapters.keras import PacelineCallback, keras

from .conftest import expected_codes, random_ends, seen

BATCHES = 24  # three epochs of eight
EARLY, LATER = {"callbacks": ["EarlyStopping"]}, {"fit": {"initial_epoch": 2}}
SCENARIOS = {
    "plain": {},
    "plain killed": {"ends": random_ends(3, BATCHES)},
    "later epoch": LATER,
    "later epoch killed": LATER | {"ends": [["SIGKILL", 18], ["SIGTERM", 20]]},
    "early stopping": EARLY,
    "stopped": {"stop": 10},
    "stopped killed": {"stop": 10, "ends": [["SIGTERM", 10]]},
}
OPTIMIZERS = [
    "Adadelta", "Adafactor", "Adagrad", "Adam", "Adamax", "AdamW", "Ftrl", "Lamb",
    "Lion", "Muon", "Nadam", "RMSprop", "ScheduleFreeAdamW", "SGD",
]  # fmt: skip
SCHEDULES = [
    "CosineDecay", "CosineDecayRestarts", "ExponentialDecay", "InverseTimeDecay", "PiecewiseConstantDecay",
    "PolynomialDecay",
]  # fmt: skip
# Each row is trained with one of the optimizers: first those with a schedule, then those without.
CALLBACKS = [
    ["CSVLogger"],
    ["ProgbarLogger"],
    ["TerminateOnNaN"],
    ["LambdaCallback"],
    ["ModelCheckpoint, batches"],
    ["RemoteMonitor"],
    ["LearningRateScheduler", "ModelCheckpoint"],
    ["ReduceLROnPlateau", "EarlyStopping, best weights"],
    ["LearningRateScheduler", "ReduceLROnPlateau", "ModelCheckpoint"],
    ["BackupAndRestore", "EarlyStopping, best weights"],
    ["SwapEMAWeights"],
    ["SwapEMAWeights, epochs", "ModelCheckpoint"],
    ["EarlyStopping"],
    ["EarlyStopping, best weights", "LearningRateScheduler"],
]
# Not part of the guarantee: a list, two containers of data, and callbacks that need other packages.
OTHERS = {"Callback", "CallbackList", "History", "OrbaxCheckpoint", "TensorBoard"}


def make_matrix():
    """Return scenarios that together contain each optimizer, schedule and callback of Keras."""
    rows = {}
    generator = random.Random(4)
    for optimizer, schedule, callbacks in itertools.zip_longest(OPTIMIZERS, SCHEDULES, CALLBACKS):
        row = {"optimizer": optimizer, "callbacks": callbacks} | ({"schedule": schedule} if schedule else {})
        if any("EMA" in name for name in callbacks):
            row["arguments"] = {"use_ema": True}
        rows[f"{optimizer}, {schedule}, {', '.join(callbacks)}"] = row
    rows["loss scale"] = {"wrapper": "LossScaleOptimizer", "arguments": {"gradient_accumulation_steps": 3}}
    rows["two optimizers"] = {"wrapper": "MultiOptimizer", "callbacks": ["LearningRateScheduler"]}
    rows["ready list"] = {"ready": True, "callbacks": ["LearningRateScheduler"], "fit": {"shuffle": "batch"}}
    for name, row in list(rows.items()):
        row |= {"batches": 4, "fit": row.get("fit", {}) | {"batch_size": 8}}
        end = [
            generator.choice(list(EXIT_CODES)),
            generator.randrange(1, 12 if "EarlyStopping" not in row.get("callbacks", ()) else 8),
        ]
        rows[f"{name} killed"] = row | {"ends": [end]}
    return rows


MATRIX = make_matrix()


@pytest.fixture(scope="module")
def trainings(train_all):
    return train_all("keras", SCENARIOS | MATRIX)


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name.endswith("killed")])
def test_killed_training_ends_with_the_same_weights_and_validation(trainings, name):
    killed, once = trainings[name], trainings[name.removesuffix(" killed")]
    assert killed.codes == expected_codes(SCENARIOS[name])
    assert killed.result == once.result
    assert killed.progress[-1][-1].metrics["val_loss"] == once.progress[-1][-1].metrics["val_loss"]


@pytest.mark.parametrize("name", [name for name in MATRIX if not name.endswith("killed")])
def test_killed_training_equals_the_undisturbed_with_other_callbacks_and_optimizers(trainings, name):
    """Weights, optimizer, history, best model, log file, and the attributes of a user's callback are equal."""
    killed = trainings[f"{name} killed"]
    assert killed.codes[0] in EXIT_CODES.values()
    assert killed.result == trainings[name].result


def test_matrix_contains_all_optimizers_schedules_and_callbacks_of_keras():
    wrappers = {"LossScaleOptimizer", "MultiOptimizer", "OptimizerMap", "Optimizer"}
    assert class_names(keras.optimizers) - wrappers == set(OPTIMIZERS)
    assert class_names(keras.optimizers.schedules) - {"LearningRateSchedule"} == set(SCHEDULES)
    used = {name.split(",")[0] for names in CALLBACKS for name in names}
    assert class_names(keras.callbacks) - OTHERS == used


def class_names(module):
    return {name for name, one in vars(module).items() if inspect.isclass(one)}


@pytest.mark.skipif(not find_spec("jax"), reason="JAX is not installed")
def test_killed_training_with_jax_equals_the_undisturbed(train_all):
    names = [name for name in MATRIX if "Plateau" in name or name.startswith("ready")]
    trained = train_all("keras", {name: MATRIX[name] for name in names}, KERAS_BACKEND="jax")
    for name in (one for one in names if not one.endswith("killed")):
        assert trained[f"{name} killed"].result == trained[name].result


def test_scenarios_end_with_different_weights(trainings):
    results = [trainings[name].result for name in SCENARIOS if not name.endswith("killed")]
    assert len(set(results)) == len(results)


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
    assert len(seen(trainings[name])) == batches


def make_model(activation="relu", rate=0.2, loss="mse", metric="mae", schedule=0.02):
    layers = [keras.layers.Dense(2, activation), keras.layers.Dropout(rate), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((1,)), *layers])
    model.compile(keras.optimizers.SGD(schedule), loss, metrics=[metric])
    return model


def fit(model, folder=None, callbacks=(), y=None, **options):
    y = np.arange(4.0) if y is None else y
    options = {"batch_size": 2, "epochs": 2, "verbose": 0} | options
    return model.fit(np.ones((4, 1)), y, callbacks=[PacelineCallback(path=folder), *callbacks], **options)


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


@pytest.mark.parametrize("then", ["fit", "track"])
def test_training_after_an_error_shows_its_progress(then):
    class Failing(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        fit(make_model(), callbacks=[Failing()])
    if then == "fit":
        fit(make_model())
    else:
        list(track("abcd"))
    assert (_session.current.last.event, _session.current.last.done) == ("finish", 4)


class Schedule(keras.optimizers.schedules.LearningRateSchedule):
    """Has no configuration."""

    def __call__(self, step):
        return 0.02


OTHER_MODELS = {
    "layer 1 activation: relu, now tanh": {"activation": "tanh"},
    "layer 2 rate: 0.2, now 0.5": {"rate": 0.5},
    "loss: mse, now mae": {"loss": "mae"},
    "metrics: [mae], now [mape]": {"metric": "mape"},
    "learning_rate: 0.019999999": {"schedule": 0.5},
}
OTHER_DATA = {
    "sample_weight: none, now [": {"sample_weight": np.arange(4.0)},
    "class_weight: none, now {": {"class_weight": {k: 1.0 + k for k in range(4)}},
    "batch_size: 2, now 3": {"batch_size": 3},
}


@pytest.mark.parametrize("difference", [*OTHER_MODELS, *OTHER_DATA])
def test_checkpoint_of_another_training_is_not_restored(tmp_path, restart_process, capsys, difference):
    fit(make_model(), tmp_path)
    restart_process()
    fit(make_model(**OTHER_MODELS.get(difference, {})), tmp_path, **OTHER_DATA.get(difference, {}))
    log = capsys.readouterr().err
    assert "this training starts from the beginning" in log
    assert difference in log


@pytest.mark.parametrize("array", [np.array, pandas.Series, torch.tensor])
def test_checkpoint_of_a_training_with_other_labels_is_not_restored(tmp_path, restart_process, capsys, array):
    fit(make_model(), tmp_path, y=array([0.0, 1, 2, 3]))
    restart_process()
    fit(make_model(), tmp_path, y=array([4.0, 1, 2, 3]))
    assert "is of another training (labels: [" in capsys.readouterr().err


@pytest.mark.parametrize(
    "make",
    [
        make_model,
        lambda: make_model(loss=lambda y, prediction: keras.ops.mean(prediction - y)),
        lambda: make_model(schedule=Schedule()),
    ],
    ids=["plain", "lambda", "no configuration"],
)
def test_same_model_built_again_continues_from_the_checkpoint(tmp_path, restart_process, capsys, make):
    fit(make(), tmp_path)
    restart_process()
    fit(make(), tmp_path)  # Keras gives its layers other names
    assert "4 of 4 batches were done" in capsys.readouterr().err


def test_models_with_other_connections_differ():
    def build(skip):
        inputs = keras.Input((2,))
        hidden = keras.layers.Dense(2)(inputs)
        model = keras.Model(inputs, keras.layers.Dense(1)(hidden + inputs if skip else hidden + hidden))
        model.compile("sgd", "mse")
        return model

    local = dict.fromkeys(("x", "y", "sample_weight", "class_weight", "batch_size"))
    assert identity(build(True), local) == identity(build(True), local) != identity(build(False), local)


def test_checkpoint_of_an_earlier_version_restores_what_it_contains(tmp_path, restart_process, capsys):
    first = fit(make_model(), tmp_path, epochs=3)
    remove_from_checkpoints(tmp_path, "state.json", "state.npz")
    restart_process()
    second = fit(make_model(activation="tanh"), tmp_path, [keras.callbacks.EarlyStopping("loss")], epochs=3)
    log = capsys.readouterr().err
    assert "6 of 6 batches were done" in log
    assert "has no state of the callbacks EarlyStopping, History: they start afresh" in log
    assert len(first.epoch) == 3
    assert second.epoch == []


def remove_from_checkpoints(folder, *names):
    """Remove files and the fingerprint, as if an earlier version had written the checkpoints."""
    for point in folder.rglob("point.json"):
        content = json.loads(point.read_text())
        del content["fingerprint"]
        for name in names:
            (point.parent / name).unlink(missing_ok=True)
            content["files"].pop(name, None)
        point.write_text(json.dumps(content))


def test_callback_that_the_checkpoint_lacks_starts_afresh_and_the_others_continue(tmp_path, restart_process, capsys):
    fit(make_model(), tmp_path, [keras.callbacks.EarlyStopping("loss", patience=9)])
    restart_process()
    stopping = keras.callbacks.EarlyStopping("loss", patience=9)
    history = fit(make_model(), tmp_path, [keras.callbacks.ReduceLROnPlateau("loss"), stopping])
    assert "has no state of the callbacks ReduceLROnPlateau: they start afresh" in capsys.readouterr().err
    assert stopping.best == min(history.history["loss"])


class Killed(BaseException):
    pass


class Rows(torch.utils.data.Dataset):
    def __init__(self):
        self.seen = []

    def __len__(self):
        return 20

    def __getitem__(self, index):
        self.seen.append(index)
        return np.float32([index / 20]), np.float32([index / 10])


@pytest.mark.parametrize("sampler", [None, lambda rows, own: torch.utils.data.RandomSampler(rows, True, 20, own)])
def test_torch_loader_with_its_own_generator_continues_with_its_order(tmp_path, restart_process, sampler):
    def train(folder, batches=0):
        restart_process()
        keras.utils.set_random_seed(1)
        rows, own = Rows(), torch.Generator().manual_seed(3)
        order = {"shuffle": True, "generator": own} if sampler is None else {"sampler": sampler(rows, own)}
        model = make_model(rate=0.0)
        done = itertools.count(1)

        def end_batch(batch, logs):
            if next(done) == batches:
                raise Killed

        ending = keras.callbacks.LambdaCallback(on_train_batch_end=end_batch)
        callbacks = [ending, PacelineCallback(path=folder, every_s=0)]
        loader = torch.utils.data.DataLoader(rows, 4, **order)
        try:
            model.fit(loader, epochs=3, verbose=0, callbacks=callbacks)
        except Killed:
            assert batches
        return rows.seen, [one.tolist() for one in model.get_weights()]

    seen, weights = train(tmp_path / "once")
    train(tmp_path / "killed", batches=8)
    resumed, resumed_weights = train(tmp_path / "killed")
    assert resumed[-40:] == seen[-40:]  # the last two epochs
    assert resumed_weights == weights


class TestContract(AdapterContract):
    steps = BATCHES

    def train(self, after_step, *, other=False):
        from .with_keras import train

        return train(after_step, optimizer="SGD" if other else "Adam", at_end=True)
