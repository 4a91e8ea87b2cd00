"""A training with Keras, started by ``test_keras``.

Options: ``stop``, the batch in which the training calls ``stop_early``; ``fit``, further arguments of ``fit``;
``compile``, further arguments of ``compile``; ``early_stopping``, whether the training ends when the loss rises.
"""

import os

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy as np
import torch
from starts import signal_at

from paceline.train import output_dir, stop_early
from paceline.train.adapters.keras import PacelineCallback

keras.config.disable_interactive_logging()


class EndingCallback(keras.callbacks.Callback):
    """Ends the process or training at the start of a batch."""

    def __init__(self, options, restarts):
        super().__init__()
        self.options, self.restarts = options, restarts

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        done = self.epoch * 8 + batch
        with (output_dir() / "seen").open("a") as seen:
            print(done, file=seen)
        signal_at(self.options, self.restarts, done)
        if done == self.options.get("stop"):
            stop_early()


def train(options, restarts):
    keras.utils.set_random_seed(0)
    generator = np.random.default_rng(1)
    x = generator.normal(size=(30, 4)).astype("float32")
    y = (x**2).sum(1)
    layers = [keras.layers.Dense(8, "relu"), keras.layers.Dropout(0.2), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((4,)), *layers])
    model.compile(keras.optimizers.Adam(0.02), "mse", metrics=["mae"], **options.get("compile", {}))
    callbacks = [PacelineCallback(every_s=0), EndingCallback(options, restarts)]
    if options.get("early_stopping"):
        callbacks.append(keras.callbacks.EarlyStopping(min_delta=100.0, patience=1))
    arguments = {"epochs": 3, "batch_size": 4, "validation_split": 0.0, "verbose": 0} | options.get("fit", {})
    model.fit(x, y, callbacks=callbacks, validation_data=(x[:8], y[:8]), **arguments)
    torch.save(
        {str(k): torch.tensor(np.array(v)) for k, v in enumerate(model.get_weights())}, output_dir() / "model.pt"
    )
