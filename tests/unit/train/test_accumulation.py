"""A checkpoint between two batches of one optimizer step would lose gradients: the loop saves after a step."""

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from torch.utils.data import DataLoader, TensorDataset

from paceline.train import checkpoint, track
from paceline.train.saving.steps import OptimizerSteps

BATCHES, EPOCHS = 10, 2


class DiedError(Exception):
    """The process dies here."""


def by_hand(loop, model, optimizer):
    """Yield after each batch, with a step after each third batch and after the last of an epoch."""
    optimizer.zero_grad()
    for number, (x,) in loop.enumerate():
        model(x).square().mean().backward()
        if (number % BATCHES + 1) % 3 == 0 or loop.epoch_end:
            optimizer.step()
            optimizer.zero_grad()
        yield loop.done


def with_accelerate(loop, model, optimizer):
    for (x,) in loop:
        with ACCELERATOR.accumulate(model):
            ACCELERATOR.backward(model(x).square().mean())
            optimizer.step()
            optimizer.zero_grad()
        yield loop.done


def train(form, folder, die_at=None):
    """Train, perhaps until the process dies, and return the number of steps and the weights."""
    global ACCELERATOR
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    ACCELERATOR = Accelerator(cpu=True, gradient_accumulation_steps=3)
    torch.manual_seed(1)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader = DataLoader(TensorDataset(torch.rand(BATCHES, 2)), batch_size=1, shuffle=True)
    if form is with_accelerate:
        model, optimizer, loader = ACCELERATOR.prepare(model, optimizer, loader)
    checkpoint(model=model, optimizer=optimizer, path=folder, every_s=0)
    for done in form(track(loader, epochs=EPOCHS), model, optimizer):
        if done == die_at:
            raise DiedError
    return [parameter.tolist() for parameter in model.parameters()]


@pytest.mark.parametrize("form", [by_hand, with_accelerate])
def test_accumulated_gradients_survive_a_death_at_each_batch(tmp_path, restart_process, form):
    undisturbed = train(form, tmp_path / "undisturbed")
    for die_at in range(BATCHES * EPOCHS):
        restart_process()
        with pytest.raises(DiedError):
            train(form, tmp_path / str(die_at), die_at)
        restart_process()
        assert train(form, tmp_path / str(die_at)) == undisturbed, die_at


def complete(steps_at, batches, optimizer):
    """Return whether the steps are complete after each batch, with steps in some of the batches."""
    done = 0
    steps = OptimizerSteps([optimizer], lambda: done)
    answers = []
    for done in range(batches):
        if done in steps_at:
            optimizer.step()
        answers.append(steps.complete(0, done + 1))
    return answers


@pytest.fixture
def optimizer():
    parameter = torch.nn.Parameter(torch.zeros(1))
    parameter.grad = torch.ones(1)
    return torch.optim.SGD([parameter], lr=0.1)


def test_steps_are_complete_after_the_batch_of_a_step(optimizer):
    assert complete({1, 3}, 4, optimizer) == [False, True, False, True]


def test_wait_for_a_step_ends_if_none_is_to_be_expected(optimizer):
    assert complete(set(), 64, optimizer) == [False] * 63 + [True]
    assert complete({0, 2}, 14, optimizer) == [True, False, True] + [False] * 7 + [True] * 4


def test_objects_without_steps_are_always_complete():
    assert complete(set(), 2, torch.nn.Linear(1, 1)) == [True, True]
