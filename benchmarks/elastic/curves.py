"""Measures the cost of a training step of real models, as input of the simulations.

All times are CPU times of the thread that trains, so that they hardly depend on other load on the machine. With two
threads, this thread computes the serial part and half of the rest.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

from paceline.simulate.parameter_servers import Workload

BATCH, SEQUENCE = 128, 64
_STEPS = 2
_FLOAT_BYTES = 4


@dataclass(frozen=True)
class Curve:
    """Measurements of one model.

    Parameters
    ----------
    parameters:
        Number of scalars in the model's state.
    alone_s:
        Seconds of a step on one thread while the other core runs the same step, because virtual cores share resources.
    both_s:
        Seconds of a step on the first of two threads.
    update_s:
        Seconds that one thread takes to add a change to the state and to copy the state.
    """

    parameters: int
    alone_s: float
    both_s: float
    update_s: float

    def workload(self, process_cores: float) -> Workload:
        """Return the workload of the simulation, by Amdahl's law: ``both = (alone - serial) / 2 + serial``.

        Parameters
        ----------
        process_cores:
            Maximum number of cores that a process can use on the machines of a cluster.
        """
        serial_s = min(max(2 * self.both_s - self.alone_s, 0.0), self.alone_s)
        return Workload(
            compute_core_s=self.alone_s,
            serial_s=serial_s,
            worker_cores=process_cores,
            update_core_s=self.update_s,
            server_cores=process_cores,
            state_bytes=_FLOAT_BYTES * self.parameters,
        )


def measure(name: str) -> Curve:
    """Measure the curve of a model in new processes."""
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"  # otherwise, a thread spends CPU time while it waits for others
    context = multiprocessing.get_context("spawn")
    with context.Pool(2) as pool:
        alone = pool.map(partial(_measure_step, name), [1, 1], chunksize=1)
    with context.Pool(1) as pool:
        both = pool.apply(_measure_step, (name, 2))
        update_s = pool.apply(_measure_update, (both[1],))
    return Curve(both[1], median(one[0] for one in alone), both[0], update_s)


def _measure_step(name: str, threads: int) -> tuple[float, int]:
    """Return the seconds of a step and the number of scalars in the state."""
    import torch
    from torch import nn

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model, inputs, wanted = MODELS[name]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    times_s = []
    for _ in range(_STEPS + 1):
        began_s = time.thread_time()
        loss = nn.functional.cross_entropy(model(inputs).flatten(0, -2), wanted.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        times_s.append(time.thread_time() - began_s)
    return median(times_s[1:]), sum(one.numel() for one in model.state_dict().values())


def _measure_update(numbers: int) -> float:
    import torch

    torch.set_num_threads(1)
    state, change = torch.zeros(numbers), torch.ones(numbers)
    times_s = []
    for _ in range(10):
        began_s = time.thread_time()
        state.add_(change)
        state.clone()
        times_s.append(time.thread_time() - began_s)
    return median(times_s)


def _image_model(name: str, size: int) -> Any:
    import torch

    from benchmarks.deadline import models

    return getattr(models, name)(10, size), torch.randn(BATCH, 3, size, size), torch.randint(0, 10, (BATCH,))


def _gpt_model() -> Any:
    """Return a GPT of 3 million parameters (table II of Nearchus), and the inputs and targets of a batch."""
    import torch
    from torch import nn

    width, words = 256, 2000

    class Gpt(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(words, width)
            layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
            self.body = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
            self.head = nn.Linear(width, words)

        def forward(self, text: torch.Tensor) -> Any:
            mask = nn.Transformer.generate_square_subsequent_mask(text.shape[1])
            return self.head(self.body(self.words(text), mask=mask, is_causal=True))

    text = torch.randint(0, words, (BATCH, SEQUENCE + 1))
    return Gpt(), text[:, :-1], text[:, 1:]


def _lstm_model() -> Any:
    """Return a bidirectional LSTM of 2.7 million parameters (table II of Nearchus), and a batch for it."""
    import torch
    from torch import nn

    width, words = 128, 18_000

    class Sentiment(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(words, width)
            self.body = nn.LSTM(width, width // 2, num_layers=2, batch_first=True, bidirectional=True)
            self.head = nn.Linear(width, 2)

        def forward(self, text: torch.Tensor) -> Any:
            return self.head(self.body(self.words(text))[0].mean(dim=1))

    return Sentiment(), torch.randint(0, words, (BATCH, SEQUENCE)), torch.randint(0, 2, (BATCH,))


MODELS: dict[str, Callable[[], Any]] = {
    "resnet50": partial(_image_model, "resnet50", 32),
    "vgg19": partial(_image_model, "vgg19", 32),
    "inception_v3": partial(_image_model, "inception_v3", 75),
    "gpt": _gpt_model,
    "lstm": _lstm_model,
}
