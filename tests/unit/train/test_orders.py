"""The parameter server gets the order of the samples from the training code's own sampler, whatever it yields."""

import threading

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    Sampler,
    SubsetRandomSampler,
    TensorDataset,
)

from paceline.train import checkpoint, track, track_epochs
from paceline.train.job import EXIT_EXCLUDED, EXIT_REJECTED
from paceline.train.parameter_server import _limits, handshake, worker
from paceline.train.parameter_server._server import Server
from paceline.train.parameter_server.shards import SampleShare

from .machines import LIMIT_S

EPOCHS, SAMPLES = 3, 12


class BatchesOfFive(Sampler):
    """A batch sampler without the attribute ``batch_size``."""

    def __init__(self, indices):
        self.indices = indices

    def __iter__(self):
        yield from BatchSampler(self.indices, 5, drop_last=False)

    def __len__(self):
        return -(-len(self.indices) // 5)


class BatchesOfNames(BatchesOfFive):
    def __iter__(self):
        yield ["first", "second"]


class EmptyBatches(BatchesOfFive):
    def __iter__(self):
        yield []


@pytest.fixture
def train_as_worker(monkeypatch, recorder, restart_process):
    """Return a function that trains as the only worker of a server, and returns the samples of each batch."""
    threads = []

    def train(loader, epochs=EPOCHS, read=list, **options):
        shares = {"a": SampleShare(1)}
        server = Server(
            shares, "127.0.0.1", 0, key=b"", store=None, display=recorder, stuck_s=LIMIT_S, patience_s=LIMIT_S
        )
        threads.append((server, threading.Thread(target=server.run)))
        threads[-1][1].start()
        monkeypatch.setenv("PACELINE_SERVER", f"127.0.0.1:{server.port}")
        monkeypatch.setenv("PACELINE_WORKER", "a")
        session = restart_process()
        checkpoint(model=torch.nn.Linear(1, 1))
        batches = [batch.tolist() for (batch,) in read(track(loader, epochs=epochs, **options))]
        assert session.worker.spent["batches"] == len(batches)
        return batches

    yield train
    for server, thread in threads:
        server.terminate()
        thread.join(LIMIT_S)


def dataset(samples=SAMPLES):
    return TensorDataset(torch.arange(samples))


def test_batch_sampler_without_a_batch_size_keeps_the_size_of_its_batches(train_as_worker):
    batches = train_as_worker(DataLoader(dataset(), batch_sampler=BatchesOfFive(range(SAMPLES))), epochs=1)
    assert [len(batch) for batch in batches] == [5, 5, 2]


def test_numpy_and_torch_indices_are_sent_as_integers(train_as_worker):
    numpy = pytest.importorskip("numpy")
    chosen = [2, 3, 5, 7]
    for indices in (numpy.array(chosen), torch.tensor(chosen)):
        batches = train_as_worker(DataLoader(dataset(), 4, sampler=SubsetRandomSampler(indices)), epochs=1)
        assert [sorted(batch) for batch in batches] == [chosen]


@pytest.mark.parametrize(
    ("sampler", "reason"),
    [
        (BatchesOfNames, "sampler: got 'first', expected whole numbers as indices, for training on several machines"),
        (EmptyBatches, "batch_sampler: got 'no samples in the first batch', expected batches with at least one sample"),
    ],
)
def test_unsuitable_batch_sampler_is_rejected(train_as_worker, capsys, sampler, reason):
    with pytest.raises(SystemExit) as ended:
        train_as_worker(DataLoader(dataset(), batch_sampler=sampler(range(SAMPLES))))
    assert ended.value.code == EXIT_REJECTED, "restarts cannot help"
    assert reason in capsys.readouterr().err


class Stream(IterableDataset):
    def __iter__(self):
        yield from range(SAMPLES)


def test_code_that_no_restart_can_help_is_rejected(train_as_worker, capsys):
    for loop, reason in (
        (lambda: train_as_worker(DataLoader(Stream(), 4), total=3), "got 'a DataLoader over Stream with batch_size=4'"),
        (lambda: list(track_epochs(2)), "track_epochs: got 'a loop over epochs', expected one loop"),
    ):
        with pytest.raises(SystemExit) as ended:
            loop()
        assert ended.value.code == EXIT_REJECTED
        assert reason in capsys.readouterr().err


def test_numbers_of_batches_that_count_one_worker_or_have_gaps_are_named(train_as_worker, capsys):
    train_as_worker(DataLoader(dataset(), 4), read=lambda loop: [batch for _, batch in enumerate(loop)])
    assert "enumerate(track(...)) counts the batches of this worker, from 0 when it joins" in capsys.readouterr().err
    train_as_worker(DataLoader(dataset(), 4), read=lambda loop: [batch for _, batch in loop.enumerate()])
    assert "the numbers of this worker have gaps" in capsys.readouterr().err
    train_as_worker(DataLoader(dataset(), 4))
    assert "numbers" not in capsys.readouterr().err


def test_sampler_seeded_with_the_epoch_has_a_new_order_in_each_epoch(train_as_worker):
    def make_loader():
        return DataLoader(dataset(), SAMPLES, sampler=DistributedSampler(dataset(), num_replicas=1, rank=0, seed=3))

    alone = [batch.tolist() for (batch,) in track(make_loader(), epochs=EPOCHS)]
    assert train_as_worker(make_loader()) == alone
    assert len(set(map(tuple, alone))) == EPOCHS


def test_sample_order_may_exceed_the_maximum_message_length(train_as_worker, monkeypatch):
    monkeypatch.setattr(handshake, "MAX_REQUEST_BYTES", 1000)
    batches = train_as_worker(DataLoader(dataset(1000), 20, shuffle=True), epochs=1)
    assert sorted(index for batch in batches for index in batch) == list(range(1000))


@pytest.mark.parametrize(("samples", "memory_bytes"), [(10, 1 << 20), (1000, 640)])
def test_order_of_too_many_samples_is_rejected(train_as_worker, monkeypatch, capsys, samples, memory_bytes):
    monkeypatch.setattr(_limits, "_MAX_SAMPLES", samples)
    monkeypatch.setattr(_limits, "memory_bytes", lambda: memory_bytes)
    monkeypatch.setattr(worker, "_RETRY_S", 0.01)
    with pytest.raises(SystemExit) as ended:
        train_as_worker(DataLoader(dataset(), 4))
    assert ended.value.code == EXIT_EXCLUDED
    assert "samples: got 12, expected at most 10" in capsys.readouterr().err
