"""Score a model on flights that it has not seen: the same script for the champion and for the challenger.

Shipped beside ``train.py`` by ``EvaluateOperator``. Finds the model in ``model/`` and the flights in ``data/``,
reports the scores, and leaves ``predictions.csv``.
"""

import json

import torch
from train import Delays, Reader, read_columns

from paceline.train import input_dir, output_dir, report


def area_under_curve(scores: torch.Tensor, late: torch.Tensor) -> float:
    """Return the chance that a late flight scores higher than one on time (equal scores count half)."""
    _, group, size = scores.unique(return_inverse=True, return_counts=True)
    rank = (size.cumsum(0) - (size - 1) / 2)[group]  # of equal scores: the mean of their ranks
    positive, negative = late.sum(), (1 - late).sum()
    return ((rank[late == 1].double().sum() - positive * (positive + 1) / 2) / (positive * negative)).item()


def main() -> None:
    """Score the model and report."""
    reader = Reader(json.loads((input_dir() / "model" / "model.json").read_text()))
    model = Delays(reader.plan)
    # weights_only: a file of weights must not be able to run code.
    model.load_state_dict(torch.load(input_dir() / "model" / "weights.pt", weights_only=True))
    model.eval()
    categories, numbers, late = reader.read(read_columns(input_dir() / "data" / "holdout.csv"))
    with torch.inference_mode():
        predicted = torch.sigmoid(model(categories, numbers))
    log_loss = torch.nn.functional.binary_cross_entropy(predicted, late).item()
    report(auc=area_under_curve(predicted, late), log_loss=log_loss, flights=float(len(late)))
    lines = "\n".join(f"{value:.6f}" for value in predicted.tolist())
    (output_dir() / "predictions.csv").write_text(f"predicted\n{lines}\n")


if __name__ == "__main__":
    main()
