"""The average of gradients in a worker's optimizer spans as many batches of the whole training as on one machine."""

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from paceline.train import checkpoint, track
from paceline.train.parameter_server._momentum import FollowingMomentum

from .machines import SAMPLES

BETAS = (0.9, 0.999)


def make_optimizer(kind=torch.optim.Adam, **options):
    return kind([torch.zeros(1, requires_grad=True)], lr=0.1, **options)


def beta_in(momentum, optimizer, done):
    momentum.begin_batch(done)
    inside = optimizer.param_groups[0]["betas"]
    momentum.end_batch()
    assert optimizer.param_groups[0]["betas"] == BETAS
    assert inside[1] == BETAS[1]
    return inside[0]


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW, torch.optim.RAdam, torch.optim.Adamax])
def test_decay_of_a_step_is_that_of_all_batches_since_the_previous_step(kind):
    optimizer = make_optimizer(kind)
    momentum = FollowingMomentum({"optimizer": optimizer})
    assert [beta_in(momentum, optimizer, done) for done in (0, 8, 16)] == pytest.approx([0.9, 0.9**8, 0.9**8])


def test_number_of_other_batches_is_a_mean_of_the_last_ten_batches():
    optimizer = make_optimizer()
    momentum = FollowingMomentum({"optimizer": optimizer})
    for done in (0, 1, 2):
        assert beta_in(momentum, optimizer, done) == 0.9
    assert beta_in(momentum, optimizer, 6) == pytest.approx(0.9**2)
    betas = [beta_in(momentum, optimizer, done) for done in range(8, 30, 2)]
    assert betas[-1] == pytest.approx(0.9**2)


@pytest.mark.parametrize("batches", [range(9), [0, 0, 1, 1, 2]])
def test_optimizer_of_a_single_worker_is_unchanged(batches):
    optimizer = make_optimizer()
    momentum = FollowingMomentum({"optimizer": optimizer})
    assert {beta_in(momentum, optimizer, done) for done in batches} == {0.9}


def test_beta_that_a_scheduler_sets_in_a_batch_remains():
    optimizer = make_optimizer()
    momentum = FollowingMomentum({"optimizer": optimizer})
    for done in (0, 8):
        momentum.begin_batch(done)
    optimizer.param_groups[0]["betas"] = (0.85, 0.999)
    momentum.end_batch()
    assert optimizer.param_groups[0]["betas"] == (0.85, 0.999)


def test_optimizer_with_two_names_is_adapted_once():
    optimizer = make_optimizer()
    momentum = FollowingMomentum({"optimizer": optimizer, "same": optimizer})
    assert [round(beta_in(momentum, optimizer, done), 3) for done in (0, 8)] == [0.9, 0.43]


def test_momentum_of_sgd_and_other_objects_are_unchanged():
    optimizer = make_optimizer(torch.optim.SGD, momentum=0.9)
    before = dict(optimizer.param_groups[0])
    momentum = FollowingMomentum({"model": torch.nn.Linear(1, 1), "optimizer": optimizer})
    for done in (0, 8):
        momentum.begin_batch(done)
    assert optimizer.param_groups[0] == before


def test_optimizer_of_a_worker_follows_the_other_workers(start_training, monkeypatch):
    training = start_training("a", "b")
    (other,) = training.start_workers("b", hold=4)
    other.wait_until_held(4)
    for name, value in (("SERVER", training.address), ("WORKER", "a")):
        monkeypatch.setenv(f"PACELINE_{name}", value)
    model = torch.nn.Module()
    model.counts = torch.nn.Parameter(torch.zeros(SAMPLES, dtype=torch.float64))
    model.register_buffer("batches", torch.tensor(0))
    model.register_buffer("rows", torch.tensor(0))
    model.register_buffer("average", torch.tensor(0.0))
    optimizer = make_optimizer()
    checkpoint(model=model, optimizer=optimizer)
    loader = DataLoader(TensorDataset(torch.arange(SAMPLES)), 3, shuffle=True)  # the plan, too, has batches of 3
    betas = []
    for (indices,) in track(loader, epochs=training.epochs):
        betas.append(optimizer.param_groups[0]["betas"][0])
        if len(betas) == 4:
            other.hold(12)
            other.wait_until_held(12)
        if len(betas) == 8:
            other.resume()
        with torch.no_grad():
            model.counts[indices] += 1
        model.batches += 1
    assert set(betas[:4]) == {0.9}, "the other worker trains no batch"
    assert betas[7] == pytest.approx(0.9 ** (15 / 7)), "eight batches of the other worker within seven of this one"
    assert optimizer.param_groups[0]["betas"] == BETAS
    training.finish_all([other])
