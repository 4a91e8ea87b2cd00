"""Train a network that says, before departure, how likely a flight from New York is to arrive late.

Runs wherever Paceline puts it (a container or a local process), and as plain ``python train.py`` too. Needs torch
and the standard library only. Reads ``train.csv``; leaves ``model.json`` (how to read a flight) and ``weights.pt``.
"""

import csv
import json
import os
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

from paceline.train import checkpoint, input_dir, output_dir, report, track

NUMERIC = ("dep_hour", "distance", "temp", "dewp", "humid", "wind_speed", "precip", "pressure", "visib")
CATEGORICAL = ("carrier", "origin", "dest", "weekday")
EPOCHS = int(os.environ.get("EPOCHS", "9"))
BATCH = int(os.environ.get("BATCH", "512"))


Columns = dict[str, tuple[str, ...]]


def read_columns(path: Path) -> Columns:
    """Read a CSV file with a header: name of the column to its values."""
    with path.open(newline="") as file:
        header, *rows = csv.reader(file)
    return dict(zip(header, zip(*rows, strict=True), strict=True))


class Reader:
    """Turns columns of text into tensors. What it learns from the training data is ``plan``, which is plain JSON."""

    def __init__(self, plan: dict) -> None:
        self.plan = plan

    @classmethod
    def fit(cls, columns: Columns) -> "Reader":
        """Learn means, spreads and the known categories; what is not known shares number 0."""
        numeric = {}
        for name in NUMERIC:
            values = torch.tensor([float(value) for value in columns[name] if value])
            numeric[name] = [values.mean().item(), values.std().item() + 1e-6]
        return cls({"numeric": numeric, "categorical": {name: sorted(set(columns[name])) for name in CATEGORICAL}})

    def read(self, columns: Columns) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return (category numbers, numbers in standard deviations, label) of every row."""
        categories, numbers = [], []
        for name, known in self.plan["categorical"].items():
            number = {value: i + 1 for i, value in enumerate(known)}
            categories.append(torch.tensor([number.get(value, 0) for value in columns[name]]))
        for name, (mean, spread) in self.plan["numeric"].items():
            values = torch.tensor([float(value) if value else mean for value in columns[name]])
            numbers.append(((values - mean) / spread).clamp(-4, 4))
        late = torch.tensor([float(value) for value in columns["late"]])
        return torch.stack(categories, dim=1), torch.stack(numbers, dim=1), late


class Delays(nn.Module):
    """An embedding for each categorical column, then two hidden layers."""

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
    """Train, and leave the model in the output folder."""
    torch.manual_seed(2013)
    columns = read_columns(input_dir() / "train.csv")
    reader = Reader.fit(columns)
    data = TensorDataset(*reader.read(columns))
    # The sampler gives whole batches, so that a batch is one indexing of the tensors.
    loader = DataLoader(data, sampler=BatchSampler(RandomSampler(data), BATCH, drop_last=False), batch_size=None)

    model = Delays(reader.plan)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=EPOCHS * len(loader))
    loss_of = nn.BCEWithLogitsLoss()
    checkpoint(model=model, optimizer=optimizer, scheduler=scheduler)
    for categories, numbers, late in track(loader, epochs=EPOCHS):
        loss = loss_of(model(categories, numbers), late)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        report(loss=loss)

    (output_dir() / "model.json").write_text(json.dumps(reader.plan, indent=1))
    torch.save(model.state_dict(), output_dir() / "weights.pt")


if __name__ == "__main__":
    main()
