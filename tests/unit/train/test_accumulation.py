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


def pretrain_and_finetune(folder, die_at=None):
    """Train in two loops. The second accumulates over eight batches, and dies after some of them."""
    torch.manual_seed(1)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    checkpoint(model=model, optimizer=optimizer, path=folder, every_s=0)
    loader = DataLoader(TensorDataset(torch.rand(8, 2)), batch_size=1)
    for accumulate in (1, 8):
        for number, (x,) in track(loader, epochs=2).enumerate(1):
            if accumulate == 8 and number == die_at:
                raise DiedError
            model(x).square().mean().backward()
            if number % accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()
    return [parameter.tolist() for parameter in model.parameters()]


def test_accumulated_gradients_of_a_second_loop_survive_a_death(tmp_path, restart_process):
    undisturbed = pretrain_and_finetune(tmp_path / "undisturbed")
    for die_at in range(1, 17):
        restart_process()
        with pytest.raises(DiedError):
            pretrain_and_finetune(tmp_path / str(die_at), die_at)
        restart_process()
        assert pretrain_and_finetune(tmp_path / str(die_at)) == undisturbed, die_at


@pytest.mark.parametrize("form", [by_hand, with_accelerate])
def test_accumulated_gradients_survive_a_death_at_each_batch(tmp_path, restart_process, form):
    undisturbed = train(form, tmp_path / "undisturbed")
    for die_at in range(BATCHES * EPOCHS):
        restart_process()
        with pytest.raises(DiedError):
            train(form, tmp_path / str(die_at), die_at)
        restart_process()
        assert train(form, tmp_path / str(die_at)) == undisturbed, die_at


class Batches:
    """Runs loops over batches, and makes steps of an optimizer in some of the batches."""

    def __init__(self, optimizer):
        self._optimizer, self._done = optimizer, 0
        self._steps = OptimizerSteps([optimizer], lambda: self._done)

    def run(self, steps_at, batches, first=0):
        """Run a loop from batch ``first`` on; return whether the steps are complete after each of its batches."""
        self._steps.begin(first)
        answers = []
        for self._done in range(first, first + batches):
            if self._done in steps_at:
                self._optimizer.step()
            answers.append(self._steps.complete(self._done + 1))
        return answers


def complete(steps_at, batches, optimizer):
    return Batches(optimizer).run(steps_at, batches)


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


@pytest.mark.parametrize("first", [0, 16])
def test_long_accumulations_are_complete_only_after_their_steps(optimizer, first):
    """Also the first two of a loop, and of one that resumes."""
    steps_at = {first + 7, first + 15, first + 23}
    assert Batches(optimizer).run(steps_at, 24, first) == ([False] * 7 + [True]) * 3


@pytest.mark.parametrize("batches_before", [1, 7, 79])
def test_steps_of_another_loop_do_not_complete_those_of_this_one(optimizer, batches_before):
    batches = Batches(optimizer)
    batches.run(set(range(batches_before)), batches_before)
    optimizer.step()  # between the loops
    assert batches.run({7, 15}, 16) == ([False] * 7 + [True]) * 2


def test_objects_without_steps_are_always_complete():
    assert complete(set(), 2, torch.nn.Linear(1, 1)) == [True, True]
