"""A training with Keras, started by ``test_keras``.

Options: ``stop``, the batch in which the training calls ``stop_early``; ``fit``, further arguments of ``fit``;
``batches``, the batches of an epoch; ``ready``, whether ``fit`` gets a ``CallbackList``;
``optimizer``, ``schedule``, ``wrapper``, and ``callbacks``, keys of the tables below. The backend is that of
``KERAS_BACKEND``.
"""

import os

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
import numpy as np

from paceline.train import output_dir
from paceline.train.adapters.keras import PacelineCallback

keras.config.disable_interactive_logging()

SCHEDULES = {
    "CosineDecay": (0.02, 20),
    "CosineDecayRestarts": (0.02, 5),
    "ExponentialDecay": (0.02, 5, 0.5),
    "InverseTimeDecay": (0.02, 5, 0.5),
    "PiecewiseConstantDecay": ([5, 9], [0.02, 0.01, 0.001]),
    "PolynomialDecay": (0.02, 20),
}
WRAPPERS = {
    "LossScaleOptimizer": lambda optimizer: keras.optimizers.LossScaleOptimizer(optimizer, dynamic_growth_steps=5),
    "MultiOptimizer": lambda optimizer: keras.optimizers.MultiOptimizer(
        keras.optimizers.OptimizerMap(optimizer, {"^b": keras.optimizers.SGD(0.01, momentum=0.9)})
    ),
}
FILE = "best.weights.h5"
CALLBACKS = {
    "LearningRateScheduler": lambda one: one(lambda epoch, rate: rate * 0.5),
    "ReduceLROnPlateau": lambda one: one(monitor="loss", min_delta=100.0, patience=1),
    "EarlyStopping": lambda one: one(monitor="loss", min_delta=100.0, patience=1),
    "EarlyStopping, best weights": lambda one: one(patience=9, mode="max", restore_best_weights=True),
    "ModelCheckpoint": lambda one: one(FILE, save_best_only=True, mode="max", save_weights_only=True),
    "ModelCheckpoint, batches": lambda one: one(FILE, save_freq=5, save_weights_only=True),
    "BackupAndRestore": lambda one: one("backup", save_freq=3),
    "SwapEMAWeights": lambda one: one(),
    "SwapEMAWeights, epochs": lambda one: one(swap_on_epoch=True),
    "CSVLogger": lambda one: one("log.csv", append=True),
    "LambdaCallback": lambda one: one(on_epoch_end=lambda epoch, logs: logs.update(own=epoch)),
    "ProgbarLogger": lambda one: one(),
    "RemoteMonitor": lambda one: one("http://127.0.0.1:9"),
    "TerminateOnNaN": lambda one: one(),
    "TensorBoard": lambda one: one("logs", write_graph=False),
}


class EndingCallback(keras.callbacks.Callback):
    """Ends the process or training at the start of a batch or at its end."""

    def __init__(self, after_step, batches, at_end):
        super().__init__()
        self.after_step, self.batches, self.at_end = after_step, batches, at_end

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        done = self.epoch * self.batches + batch
        with (output_dir() / "seen").open("a") as seen:
            print(done, file=seen)
        if not self.at_end:
            self.after_step(done)

    def on_train_batch_end(self, batch, logs=None):
        if self.at_end:
            self.after_step(self.epoch * self.batches + batch + 1)


class Own(keras.callbacks.Callback):
    """A callback of a user: an object that cannot be saved, and containers that change in place."""

    def __init__(self):
        super().__init__()
        self.bar, self.losses, self.sums, self.odd = None, [], np.zeros(2), False

    def on_epoch_begin(self, epoch, logs=None):
        self.bar = object()
        self.losses.append([])
        self.odd = not self.odd

    def on_train_batch_end(self, batch, logs=None):
        assert self.bar is not None
        self.losses[-1].append(logs["loss"])
        self.sums += [1, logs["loss"] * self.odd]


def make_optimizer(options):
    rate = options.get("schedule", 0.02)
    if rate in SCHEDULES:
        rate = getattr(keras.optimizers.schedules, rate)(*SCHEDULES[rate])
    optimizer = getattr(keras.optimizers, options.get("optimizer", "Adam"))(rate, **options.get("arguments", {}))
    return WRAPPERS[options["wrapper"]](optimizer) if "wrapper" in options else optimizer


def train(after_step, **options):
    keras.utils.set_random_seed(0)
    generator = np.random.default_rng(1)
    x = generator.normal(size=(30, 4)).astype("float32")
    y = (x**2).sum(1)
    layers = [
        keras.layers.Dense(8, "relu", name="a"),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.2),
        keras.layers.Dense(1, name="b"),
    ]
    model = keras.Sequential([keras.Input((4,)), *layers])
    model.compile(make_optimizer(options), "mse", metrics=["mae"])
    names = options.get("callbacks", [])
    callbacks = [CALLBACKS[name](getattr(keras.callbacks, name.split(",")[0])) for name in names]
    own, middle = Own(), len(callbacks) // 2
    ending = EndingCallback(after_step, options.get("batches", 8), options.get("at_end", False))
    callbacks[middle:middle] = [own, PacelineCallback(every_s=0), ending]
    arguments = {"epochs": 3, "batch_size": 4, "verbose": 0} | options.get("fit", {})
    if options.get("ready"):
        callbacks = keras.callbacks.CallbackList(callbacks, add_history=True, model=model)
    history = model.fit(x, y, callbacks=callbacks, validation_data=(x[:8], y[:8]), **arguments)
    result = {f"weight {k}": one for k, one in enumerate(model.get_weights())}
    result |= {f"optimizer {k}": keras.ops.convert_to_numpy(one) for k, one in enumerate(model.optimizer.variables)}
    result |= {f"history {name}": np.array(values) for name, values in history.history.items()}
    result |= {"own": np.concatenate([*own.losses, own.sums])}
    if os.path.exists(FILE):
        model.load_weights(FILE)
        result |= {f"best {k}": one for k, one in enumerate(model.get_weights())}
    if os.path.exists("log.csv"):
        result["log"] = np.loadtxt("log.csv", delimiter=",", skiprows=1)
    return {name: one.tolist() for name, one in result.items()}
