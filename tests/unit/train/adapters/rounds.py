"""Data and options of the trainings with boosting libraries and scikit-learn.

It hides torch from the modules that are imported after it: these adapters do not need it.
"""

import sys
from dataclasses import dataclass, field

import numpy as np

generator = np.random.default_rng(5)
features = generator.normal(size=(400, 6))
noise = generator.normal(size=400)
target = 2 * features[:, 0] + np.sin(3 * features[:, 1]) + noise
TRAIN, VALID = (features[:300], target[:300]), (features[300:], target[300:])


@dataclass
class Options:
    """Parameters of the library; whether its estimator trains; the patience of early stopping; an initial model."""

    params: dict = field(default_factory=dict)
    estimator: bool = False
    patience: int | None = None
    continued: bool = False
    every_s: float = 0


class NoTorch:
    """An import finder that hides torch."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, NoTorch())
