"""Training script that runs in a container for measurements: a small convolutional network on random images."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline.train import checkpoint, track

SAMPLES, EPOCHS, CLASSES = 3855, 1, 10  # as many samples as in Deep-Edge

torch.manual_seed(0)
data = TensorDataset(torch.randn(SAMPLES, 3, 32, 32), torch.randint(0, CLASSES, (SAMPLES,)))
layers = []
width_in = 3
for width in (32, 64, 128):
    layers += [nn.Conv2d(width_in, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    width_in = width
model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(128 * 16, 256), nn.ReLU(), nn.Linear(256, CLASSES))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

checkpoint(model=model, optimizer=optimizer)
for images, labels in track(DataLoader(data, batch_size=16, shuffle=True), epochs=EPOCHS):
    loss = nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
