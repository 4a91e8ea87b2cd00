"""A restarted loop continues with the same batches, for any loader and position. These tests kill no processes."""

import random
import tempfile

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, SequentialSampler

from paceline.train import _session, checkpoint, track


class Samples(Dataset):
    """A data set with random augmentation that counts how often samples are read."""

    def __init__(self, count):
        self.count = count
        self.reads = 0

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        self.reads += 1
        if isinstance(index, list):
            return torch.tensor(index), torch.rand(len(index)), torch.tensor(random.random())
        return index, torch.rand(()).item(), random.random()


def train_until(make_loader, folder, *, epochs, stop_after=None):
    """Run a training loop. Return its batches and the next value of each random generator."""
    _session.current = _session.Session()
    seen = []
    torch.manual_seed(3)
    random.seed(4)
    loader = make_loader()
    checkpoint(model=torch.nn.Identity(), path=folder, every_s=3600 if stop_after is None else 0)
    for batch in track(loader, epochs=epochs):
        if len(seen) == stop_after:
            return seen, None
        seen.append([part.tolist() for part in batch])
        torch.rand(2)  # use a random number in every batch, like dropout
    return seen, (torch.rand(()).item(), random.random())


@st.composite
def random_loaders(draw):
    samples, batch_size = draw(st.integers(1, 12)), draw(st.integers(1, 5))
    own = draw(st.booleans())  # with a separate generator or with the global generator
    kind = draw(
        st.sampled_from(["in order", "shuffle", "replacement", "more than there are", "batch sampler", "whole batches"])
    )
    drop_last = samples >= batch_size and draw(st.booleans())

    def make_loader():
        data = Samples(samples)
        generator = torch.Generator().manual_seed(9) if own else None
        if kind in ("in order", "shuffle"):
            shuffle = kind == "shuffle"
            return DataLoader(data, batch_size, shuffle, generator=generator, drop_last=drop_last)
        if kind == "batch sampler":
            inner = RandomSampler(data, generator=generator)
            return DataLoader(data, batch_sampler=BatchSampler(inner, batch_size, drop_last))
        if kind == "whole batches":
            inner = RandomSampler(data, generator=generator)
            return DataLoader(data, sampler=BatchSampler(inner, batch_size, drop_last), batch_size=None)
        replacement = kind == "replacement"
        sampler = RandomSampler(data, replacement, num_samples=samples * 2 + 1, generator=generator)
        return DataLoader(data, batch_size, sampler=sampler, generator=generator)

    return make_loader


@settings(max_examples=60)
@given(
    make_loader=random_loaders(), epochs=st.integers(1, 3), more=st.integers(0, 2), place=st.none() | st.floats(0, 1)
)
def test_interrupted_run_yields_the_batches_of_an_uninterrupted_run(make_loader, epochs, more, place):
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
        whole, after_whole = train_until(make_loader, one, epochs=epochs + more)
        before = len(whole) // (epochs + more) * epochs
        stop_after = None if place is None else min(int(place * before), before - 1)
        first, _ = train_until(make_loader, two, epochs=epochs, stop_after=stop_after)
        second, after_second = train_until(make_loader, two, epochs=epochs + more)
    assert first + second == whole
    assert after_second == after_whole


@settings(max_examples=30)
@given(batches=st.integers(1, 6), epochs=st.integers(1, 4), place=st.floats(0, 1))
def test_loop_over_any_iterable_resumes_in_the_middle(batches, epochs, place):
    stop_after = int(place * (batches * epochs - 1))
    loader = [[torch.tensor(k)] for k in range(batches)]
    with tempfile.TemporaryDirectory() as folder:
        first, _ = train_until(lambda: loader, folder, epochs=epochs, stop_after=stop_after)
        second, _ = train_until(lambda: loader, folder, epochs=epochs)
    assert first + second == [[k] for k in range(batches)] * epochs


@pytest.mark.parametrize("torch_internals_match", [True, False])
def test_completed_samples_are_not_read_again(tmp_path, monkeypatch, torch_internals_match):
    """If torch's internals change, samples are read and discarded, which is slower but returns the same batches."""
    if not torch_internals_match:
        known = torch.utils.data.dataloader._SingleProcessDataLoaderIter
        renamed = type("_InProcessIter", (known,), {})
        monkeypatch.setattr(DataLoader, "_get_iterator", lambda self: renamed(self))
    data = Samples(100)
    make_loader = lambda: DataLoader(data, batch_size=1, shuffle=True)  # noqa: E731
    first, _ = train_until(make_loader, tmp_path, epochs=1, stop_after=90)
    data.reads = 0
    second, _ = train_until(make_loader, tmp_path, epochs=1)
    assert sorted(batch[0][0] for batch in first + second) == list(range(100))
    assert data.reads == (10 if torch_internals_match else 100)


def test_set_epoch_of_the_sampler_is_called(tmp_path):
    class RotatingSampler(SequentialSampler):
        epoch = 0

        def set_epoch(self, epoch):
            self.epoch = epoch

        def __iter__(self):
            return iter([(index + self.epoch) % 5 for index in range(5)])

    make_loader = lambda: DataLoader(Samples(5), batch_size=1, sampler=RotatingSampler(range(5)))  # noqa: E731
    first, _ = train_until(make_loader, tmp_path, epochs=3, stop_after=7)
    second, _ = train_until(make_loader, tmp_path, epochs=3)
    order = [batch[0][0] for batch in first + second]
    assert order == [0, 1, 2, 3, 4, 1, 2, 3, 4, 0, 2, 3, 4, 0, 1]


class Buckets:
    """A batch sampler whose epochs have 2, 4 and 1 batches, as it says after ``set_epoch``."""

    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return (2, 4, 1)[self.epoch]

    def __iter__(self):
        return iter([[number] for number in range(len(self))])


@pytest.mark.parametrize("stop_after", range(1, 7))
def test_sampler_may_have_another_length_in_each_epoch(tmp_path, stop_after):
    ends, totals = [], []
    for batches in (stop_after, 7 - stop_after):
        _session.current = _session.Session()
        checkpoint(model=torch.nn.Identity(), path=tmp_path, every_s=0)
        loop = track(DataLoader(Samples(4), batch_sampler=Buckets()), epochs=3)
        for number, _ in enumerate(loop):
            if number == batches:
                break
            totals.append(loop.total)
            if loop.epoch_end:
                ends.append((loop.epoch, loop.batch))
    assert ends == [(0, 1), (1, 3), (2, 0)]
    assert totals[-1] == 7


GENERATORS = {
    "torch": lambda: torch.Generator().manual_seed(5),
    "RandomState": lambda: numpy.random.RandomState(5),
    "PCG64": lambda: numpy.random.default_rng(5),
    "MT19937": lambda: numpy.random.Generator(numpy.random.MT19937(5)),
    "Philox": lambda: numpy.random.Generator(numpy.random.Philox(5)),
    "Python": lambda: random.Random(5),
}


def permute(generator, number):
    if isinstance(generator, torch.Generator):
        return torch.randperm(number, generator=generator).tolist()
    if isinstance(generator, random.Random):
        return generator.sample(range(number), number)
    return generator.permutation(number).tolist()


class ShuffleSampler(SequentialSampler):
    """A sampler with a generator of any kind in an attribute of any name."""

    def __init__(self, data, name, generator):
        super().__init__(data)
        setattr(self, name, generator)
        self.name = name

    def __iter__(self):
        return iter(permute(getattr(self, self.name), len(self.data_source)))


def assert_continues(make_loader, folder):
    whole, _ = train_until(make_loader, folder / "whole", epochs=3)
    first, _ = train_until(make_loader, folder / "two", epochs=3, stop_after=7)
    second, _ = train_until(make_loader, folder / "two", epochs=3)
    assert len(second) == 15 - 7
    assert first + second == whole


@pytest.mark.parametrize("name", ["generator", "_rng"])
@pytest.mark.parametrize("kind", GENERATORS)
def test_sampler_with_a_generator_of_its_own_continues(tmp_path, kind, name):
    def make_loader():
        return DataLoader(Samples(5), batch_size=1, sampler=ShuffleSampler(range(5), name, GENERATORS[kind]()))

    assert_continues(make_loader, tmp_path)


@pytest.mark.parametrize("kind", GENERATORS)
def test_loader_that_shuffles_with_a_generator_of_its_own_continues(tmp_path, kind):
    class ArrayLoader:
        def __init__(self):
            self.rng = GENERATORS[kind]()

        def __iter__(self):
            return ([torch.tensor(index)] for index in permute(self.rng, 5))

        def __len__(self):
            return 5

    assert_continues(ArrayLoader, tmp_path)


def test_generator_that_a_sampler_creates_late_is_named(tmp_path, capsys):
    """The checkpoint has its state, but the order of the interrupted epoch cannot be restored."""

    class LateSampler(ShuffleSampler):
        def __init__(self, data):
            super().__init__(data, "rng", None)

        def __iter__(self):
            self.rng = self.rng or numpy.random.default_rng(5)
            return super().__iter__()

    make_loader = lambda: DataLoader(Samples(5), batch_size=1, sampler=LateSampler(range(5)))  # noqa: E731
    train_until(make_loader, tmp_path, epochs=3, stop_after=7)
    train_until(make_loader, tmp_path, epochs=3)
    assert "the samplers have 0 random generators, and had 1" in capsys.readouterr().err
