"""Training script: learns scikit-learn's digits and stores the accuracy, alone or as one of several workers.

Usage: ``python digits_model.py EPOCHS``. Each batch waits while the output folder has a file ``hold``, so that all
workers are present from the first batch.
"""

import json
import sys
import time

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline.train import checkpoint, output_dir, track

images, labels = load_digits(return_X_y=True)
split = train_test_split(images / 16, labels, test_size=0.3, random_state=0, stratify=labels)
seen, unseen, seen_labels, unseen_labels = map(torch.tensor, split)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
loader = DataLoader(TensorDataset(seen.float(), seen_labels), 16, shuffle=True)
checkpoint(model=model, optimizer=optimizer)
hold = output_dir() / "hold"
for x, y in track(loader, epochs=int(sys.argv[1])):
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    while hold.exists():
        time.sleep(0.01)
with torch.no_grad():
    accuracy = (model(unseen.float()).argmax(1) == unseen_labels).float().mean()
(output_dir() / "accuracy.json").write_text(json.dumps(float(accuracy)))
