"""Train a network that predicts, before departure, how likely a flight from New York is to arrive late.

The script runs in one or several containers, in a local process, or as plain ``python train.py``. It reads
``train.csv``, and writes ``model.json`` (the encoding of flights) and ``weights.pt``.
"""

import csv
import json
import math
import os
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline.train import checkpoint, input_dir, output_dir, report, track

NUMERIC = ("dep_hour", "distance", "temp", "dewp", "humid", "wind_speed", "precip", "pressure", "visib")
CATEGORICAL = ("carrier", "origin", "dest", "weekday")
EPOCHS = int(os.environ.get("EPOCHS", "9"))
BATCH = int(os.environ.get("BATCH", "512"))
PEAK_RATE, WARM_UP = 3e-3, 0.3


Columns = dict[str, tuple[str, ...]]


def read_columns(path: Path) -> Columns:
    """Read a CSV file with a header into a mapping of column names to values."""
    with path.open(newline="") as file:
        header, *rows = csv.reader(file)
    return dict(zip(header, zip(*rows, strict=True), strict=True))


class Reader:
    """Converts text columns to tensors. ``plan`` is the encoding fitted to the training data, as plain JSON."""

    def __init__(self, plan: dict) -> None:
        self.plan = plan

    @classmethod
    def fit(cls, columns: Columns) -> "Reader":
        """Fit the encoding to the data. ``read`` encodes a category that is not in the data as 0."""
        numeric = {}
        for name in NUMERIC:
            values = torch.tensor([float(value) for value in columns[name] if value])
            numeric[name] = [values.mean().item(), values.std().item() + 1e-6]
        return cls({"numeric": numeric, "categorical": {name: sorted(set(columns[name])) for name in CATEGORICAL}})

    def read(self, columns: Columns) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the category indices, the standardized numeric values and the labels of all rows."""
        categories, numbers = [], []
        for name, known in self.plan["categorical"].items():
            number = {value: i + 1 for i, value in enumerate(known)}
            categories.append(torch.tensor([number.get(value, 0) for value in columns[name]]))
        for name, (mean, spread) in self.plan["numeric"].items():
            values = torch.tensor([float(value) if value else mean for value in columns[name]])
            numbers.append(((values - mean) / spread).clamp(-4, 4))
        late = torch.tensor([float(value) for value in columns["late"]])
        return torch.stack(categories, dim=1), torch.stack(numbers, dim=1), late


class Flights(TensorDataset):
    """Dataset that selects a whole batch with one tensor operation, instead of row by row."""

    def __getitems__(self, indices: list[int]) -> tuple[torch.Tensor, ...]:
        """Return the rows of a batch."""
        chosen = torch.tensor(indices)
        return tuple(column[chosen] for column in self.tensors)


def identity(batch: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Return the batch unchanged, because ``Flights`` has already collated the rows."""
    return batch


def learning_rate(progress: float) -> float:
    """Return the learning rate at a progress from 0 to 1: a cosine warm-up to the peak, then a cosine decay to zero.

    The rate depends on progress, not on the batch number, because batch sizes may differ between machines.
    """
    turn = progress / WARM_UP if progress < WARM_UP else 1 + (progress - WARM_UP) / (1 - WARM_UP)
    return PEAK_RATE * (
        1 - 0.96 * (1 + math.cos(math.pi * turn)) / 2 if turn < 1 else (1 - math.cos(math.pi * turn)) / 2
    )


class Delays(nn.Module):
    """Network with an embedding for each categorical column and two hidden layers."""

    def __init__(self, plan: dict, hidden: int = 256, width: int = 8) -> None:
        super().__init__()
        self.embed = nn.ModuleList(nn.Embedding(len(known) + 1, width) for known in plan["categorical"].values())
        inputs = len(plan["numeric"]) + width * len(plan["categorical"])
        self.layers = nn.Sequential(
            *(nn.Linear(inputs, hidden), nn.ReLU(), nn.Dropout(0.3)),
            *(nn.Linear(hidden, hidden), nn.ReLU(), nn.Dropout(0.3)),
            nn.Linear(hidden, 1),
        )

    def forward(self, categories: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        """Return the logit of "late" for each flight."""
        embedded = [embed(categories[:, i]) for i, embed in enumerate(self.embed)]
        return self.layers(torch.cat([*embedded, numbers], dim=1)).squeeze(1)


def main() -> None:
    """Train the model and write it to the output folder."""
    torch.manual_seed(2013)
    columns = read_columns(input_dir() / "train.csv")
    reader = Reader.fit(columns)
    loader = DataLoader(Flights(*reader.read(columns)), BATCH, shuffle=True, collate_fn=identity)

    model = Delays(reader.plan)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.05)
    loss_of = nn.BCEWithLogitsLoss()
    checkpoint(model=model, optimizer=optimizer)
    loop = track(loader, epochs=EPOCHS)
    for categories, numbers, late in loop:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(loop.done / loop.total)
        loss = loss_of(model(categories, numbers), late)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        report(loss=loss)

    (output_dir() / "model.json").write_text(json.dumps(reader.plan, indent=1))
    torch.save(model.state_dict(), output_dir() / "weights.pt")


if __name__ == "__main__":
    main()
