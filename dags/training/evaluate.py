"""Score a model on held-out flights. ``EvaluateOperator`` runs this script for the champion and for the challenger.

The job also contains ``train.py``. The script reads the model from ``model/`` and the flights from ``data/``, reports
the scores, and writes ``predictions.csv``.
"""

import json

import torch
from train import Delays, Reader, read_columns

from paceline.train import input_dir, output_dir, report


def area_under_curve(scores: torch.Tensor, late: torch.Tensor) -> float:
    """Return the probability that a late flight scores higher than a punctual flight (ties count half)."""
    _, group, size = scores.unique(return_inverse=True, return_counts=True)
    rank = (size.cumsum(0) - (size - 1) / 2)[group]  # equal scores get their mean rank
    positive, negative = late.sum(), (1 - late).sum()
    return ((rank[late == 1].double().sum() - positive * (positive + 1) / 2) / (positive * negative)).item()


def main() -> None:
    """Score the model, report the scores and write the predictions."""
    reader = Reader(json.loads((input_dir() / "model" / "model.json").read_text()))
    model = Delays(reader.plan)
    # weights_only prevents code in the weights file from running.
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
