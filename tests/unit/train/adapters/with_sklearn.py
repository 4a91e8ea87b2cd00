"""A training with scikit-learn, started by ``test_sklearn``. It returns predictions, the number of rounds, and more."""

from .conftest import ROUNDS
from .rounds import TRAIN, features

# isort: split

from sklearn.neural_network import MLPRegressor

from paceline.train import track
from paceline.train.adapters.sklearn import checkpoint


def train(after_step, *, units=8, every_s=0):
    model = checkpoint(MLPRegressor(hidden_layer_sizes=(units,), random_state=1), every_s=every_s)
    batches = [slice(start, start + 60) for start in range(0, 300, 60)]
    for rows in (loop := track(batches, epochs=ROUNDS // len(batches))):
        model.partial_fit(TRAIN[0][rows], TRAIN[1][rows])
        after_step(loop.done + 1)
    return model.predict(features).tolist(), loop.done
