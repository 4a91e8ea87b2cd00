"""Floating-point buffers of asynchronous workers stay near those of one process, however stale the workers' states are.

The workers are simulated: ``SharedTraining`` applies their updates in a fixed order.
"""

from types import SimpleNamespace

import pytest
import torch

from paceline.train.parameter_server._vector import StateVector

from .machines import make_joined_training

SAMPLES, BATCH_SIZE, EPOCHS = 800, 4, 10
MEAN, DEVIATION = 3.0, 0.1  # far from 0 and 1, the initial values of batch normalisation


def make_job(workers):
    """Return a job whose workers have all joined, with a batch-normalised model and data for it."""
    generator = torch.Generator().manual_seed(11)
    data = MEAN + DEVIATION * torch.randn(SAMPLES, 2, generator=generator)
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 1))
    vector = StateVector({"model": model})
    names = [f"w{number}" for number in range(workers)]
    training = make_joined_training(names, BATCH_SIZE, epochs=EPOCHS, vector=vector)
    seen = dict.fromkeys(names, training.state.snapshot())
    return SimpleNamespace(data=data, norm=model[0], vector=vector, training=training, names=names, seen=seen)


def train_batch(job, number):
    """Train one batch of a worker from the state that the worker saw last; return the newest running variances."""
    name, training = job.names[number], job.training
    lease = training.next_message(name, number)
    if lease["kind"] == "order":
        training.start_epoch(name, number, list(range(SAMPLES)))
        lease = training.next_message(name, number)
    if lease["kind"] == "lease":
        job.vector.write(job.seen[name])
        job.norm(job.data[lease["indices"]])  # the forward pass updates the running statistics
        update, version = job.vector.update_since(job.seen[name]), training.state.own_range()[0]["version"]
        assert training.apply_change(name, number, lease["number"], version, update, {})
        job.seen[name] = training.state.snapshot()
    job.vector.write(training.state.snapshot())
    return job.norm.running_var.clone()


def train_alone():
    """Return the batch normalisation that one process trains on the same data, without a server."""
    job = make_job(1)
    for _ in range(EPOCHS):
        for batch in job.data.split(BATCH_SIZE):
            job.norm(batch)
    return job.norm


@pytest.mark.parametrize("workers", [1, 8, 20])
def test_running_statistics_of_stale_workers_are_near_those_of_one_process(workers):
    job = make_job(workers)
    while not job.training.ended:
        for number in range(workers):
            assert (train_batch(job, number) > 0).all()
    alone = train_alone()
    assert job.norm.running_mean.tolist() == pytest.approx(alone.running_mean.tolist(), rel=0.03)
    assert job.norm.running_var.tolist() == pytest.approx(alone.running_var.tolist(), rel=0.5)
    assert job.norm.num_batches_tracked == alone.num_batches_tracked, "counts are added up"


def test_running_statistics_of_one_worker_equal_those_of_one_process():
    job = make_job(1)
    while not job.training.ended:
        train_batch(job, 0)
    alone = train_alone()
    assert torch.equal(job.norm.running_mean, alone.running_mean)
    assert torch.equal(job.norm.running_var, alone.running_var)


def test_variance_stays_positive_after_the_update_of_a_straggler():
    job = make_job(2)
    assert job.training.next_message("w1", 1)["kind"] == "order"
    job.training.start_epoch("w1", 1, list(range(SAMPLES)))
    straggler = job.training.next_message("w1", 1)
    job.vector.write(job.seen["w1"])
    job.norm(job.data[straggler["indices"]])
    late, version = job.vector.update_since(job.seen["w1"]), job.training.state.own_range()[0]["version"]
    for _ in range(100):
        before = train_batch(job, 0)
    assert job.training.apply_change("w1", 1, straggler["number"], version, late, {})
    job.vector.write(job.training.state.snapshot())
    assert (job.norm.running_var > 0).all()
    assert (job.norm.running_var - before < 0.1).all(), "an old state counts little"
