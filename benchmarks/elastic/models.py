"""A CNN, a transformer and an LSTM that are small enough to train on two cores. This file runs in the job's container.

Each model learns the ten classes of ``data``, whose samples are noisy copies of one pattern per class.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

CLASSES, LENGTH, WIDTH = 10, 16, 32  # a sample has LENGTH rows of WIDTH numbers
_NOISE = 0.7  # a good model reaches an accuracy of 0.9


def data(samples: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return samples of shape (samples, LENGTH, WIDTH) and their classes; the patterns do not depend on the seed."""
    patterns = torch.randn(CLASSES, LENGTH, WIDTH, generator=torch.Generator().manual_seed(1)) * 0.35
    random = torch.Generator().manual_seed(seed)
    classes = torch.randint(0, CLASSES, (samples,), generator=random)
    return patterns[classes] + _NOISE * torch.randn(samples, LENGTH, WIDTH, generator=random), classes


class Convolutional(nn.Module):
    """A model of three convolutions and a dense layer."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        width_in = 1
        for out in (width, 2 * width, 2 * width):
            layers += [nn.Conv2d(width_in, out, 3, padding=1), nn.ReLU()]
            width_in = out
        self.body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d((4, 8)), nn.Flatten())
        self.head = nn.Linear(2 * width * 32, CLASSES)

    def forward(self, rows: Tensor) -> Tensor:
        """Return the scores of the classes."""
        scores: Tensor = self.head(self.body(rows.unsqueeze(1)))
        return scores


class Transformer(nn.Module):
    """A model of two encoder layers over the rows (Vaswani et al. 2017) that averages their outputs."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.zeros(LENGTH, width))
        self.embedding = nn.Linear(WIDTH, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, rows: Tensor) -> Tensor:
        """Return the scores of the classes."""
        scores: Tensor = self.head(self.body(self.embedding(rows) + self.positions).mean(dim=1))
        return scores


class Recurrent(nn.Module):
    """A bidirectional LSTM (Hochreiter and Schmidhuber 1997) over the rows that averages its states."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.body = nn.LSTM(WIDTH, width, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, CLASSES)

    def forward(self, rows: Tensor) -> Tensor:
        """Return the scores of the classes."""
        states, _ = self.body(rows)
        scores: Tensor = self.head(states.mean(dim=1))
        return scores


MODELS: dict[str, Callable[[], nn.Module]] = {
    "cnn": Convolutional,
    "transformer": Transformer,
    "lstm": Recurrent,
}
