"""The workers of a fleet have the same data, sampler and model, or the server rejects them by name.

The processes run ``counted.py``; all of them are real.
"""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler, SubsetRandomSampler, TensorDataset

from paceline.train.parameter_server import _agreement as agreements
from paceline.train.parameter_server._agreement import Agreement, describe
from paceline.train.parameter_server._vector import StateVector

from .machines import SAMPLES

OPTIONS = {"counters": SAMPLES, "layers": ["one", "two"]}
# A parameter server that would save for the second time after the end of the test.
SLOW_SERVER = """
from paceline.train.parameter_server import __main__, _server, handshake

_server._POLL_S = 10_000.0
handshake.end_process(__main__.main())
"""
DIFFERENCES = {
    "fewer samples": ({"samples": 40}, {}, "samples: got 40, expected 60 as in a"),
    "more samples": ({"samples": 61}, {}, "samples: got 61, expected 60 as in a"),
    "order of samples": ({}, {"shift": 1}, "checksum of 16 samples: got "),
    "order of layers": (
        {},
        {"layers": ["two", "one"]},
        "model[1]: got 'model.two.weight float32 (2, 2)', expected 'model.one.weight float32 (2, 2)' as in a",
    ),
    "end of training": ({}, {"gain": 0.01}, """until: got "{'metric': 'accuracy', """),
}


@pytest.mark.parametrize(("arguments", "options", "reason"), DIFFERENCES.values(), ids=DIFFERENCES)
def test_worker_with_another_training_is_rejected_by_name(start_training, arguments, options, reason):
    training = start_training("a", "b")
    (first,) = training.start_workers("a", OPTIONS, hold=2)
    first.wait_until_held(2)
    other = training.start_worker("b", {**OPTIONS, **options}, **arguments)
    assert other.wait_for_end() == 7
    assert f"rejected by the parameter server: {reason}" in other.log
    assert f"b is rejected: {reason}" in training.server.log
    training.finish_and_check([first])


def test_restarted_server_rejects_a_worker_with_other_data_before_the_first_one_returns(start_training):
    training = start_training("a", "b")
    (first,) = training.start_workers("a", OPTIONS, hold=2)
    training.server.wait_until_done(6)
    training.server.process.terminate()
    assert training.server.wait_for_end() == 143
    training.start_server()
    other = training.start_worker("b", OPTIONS, samples=40)
    assert other.wait_for_end() == 7
    assert "samples: got 40, expected 60 as in a" in other.log
    training.finish_and_check([first])


def test_server_that_is_killed_before_its_first_save_counts_each_sample_once(start_training):
    training = start_training("a", program=("-c", SLOW_SERVER))
    (worker,) = training.start_workers("a", hold=2)
    worker.wait_until_held(2)
    training.server.kill()
    training.program = ("-m", "paceline.train.parameter_server")
    training.start_server()
    training.finish_and_check([worker])


def difference(loader, other, model=None, other_model=None):
    agreement = Agreement()
    agreement.add("a", describe(loader, vector_of(model), None))
    return agreement.difference(describe(other, vector_of(other_model), None))


def vector_of(model):
    return StateVector({"model": model or nn.Linear(2, 1)})


class Rows(Dataset):
    """Rows in the forms of own data sets: a text, an array, numbers."""

    def __init__(self, features, names="abc"):
        self.features, self.names = features, names

    def __len__(self):
        return len(self.features)

    def __getitem__(self, index):
        name = self.names[index % len(self.names)]
        return {"name": name, "row": self.features[index].numpy(), "mean": float(self.features[index].mean())}


FEATURES = torch.randn(500, 6, generator=torch.Generator().manual_seed(1)) * torch.tensor([1e-3, 1, 1, 1, 1e3, 1e9])
LABELS = torch.arange(500) % 2
FORMS = {"tensors": lambda features: TensorDataset(features, LABELS), "own": Rows}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_data_with_other_rounding_errors_agrees(form):
    other = FEATURES * (1 + 1e-6 * torch.randn_like(FEATURES))
    assert difference(DataLoader(form(FEATURES), 4), DataLoader(form(other), 8, num_workers=1)) is None


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_data_with_other_numbers_differs(form):
    small = FEATURES.clone()
    small[:, 1] = small[:, 1].roll(1)  # a column that is small next to the largest one
    for other in (FEATURES.roll(1, 0), FEATURES * 1.1, FEATURES.double(), FEATURES[:, :5], small):
        assert difference(DataLoader(form(FEATURES), 4), DataLoader(form(other), 4)) is not None


def test_data_with_other_texts_differs():
    assert difference(DataLoader(Rows(FEATURES), 4), DataLoader(Rows(FEATURES, "acb"), 4)) is not None


def test_data_of_other_types_is_named():
    data = DataLoader(TensorDataset(FEATURES, LABELS), 4)
    reason = difference(data, DataLoader(TensorDataset(FEATURES, LABELS.float()), 4))
    types = "float32 (1, 6), int64 (1,)"
    assert reason.startswith(f"types of a sample: got 'float32 (1, 6), float32 (1,)', expected '{types}' as in a")


class Unsized(Sampler):
    def __iter__(self):
        return iter(range(500))


def test_loader_whose_sampler_has_no_length_is_described():
    described = describe(DataLoader(Rows(FEATURES), 4, sampler=Unsized()), vector_of(None), None)
    assert (described["samples"], described["sampler"], described["samples of an epoch"]) == (500, "Unsized", None)


class Noise(Dataset):
    generator = torch.Generator()

    def __len__(self):
        return 20

    def __getitem__(self, index):
        return torch.randn(3, generator=self.generator)


def test_data_that_cannot_be_compared_agrees():
    assert difference(DataLoader(Noise(), 4), DataLoader(Noise(), 4)) is None
    reason = difference(DataLoader(Noise(), 4), DataLoader(TensorDataset(FEATURES, LABELS), 4))
    assert reason.startswith("samples: got 500, expected 20 as in a")


def test_description_does_not_change_random_numbers():
    vector = vector_of(None)
    torch.manual_seed(1)
    expected = torch.rand(3).tolist()
    torch.manual_seed(1)
    describe(DataLoader(TensorDataset(FEATURES, LABELS), 4, shuffle=True), vector, None)
    assert torch.rand(3).tolist() == expected


def subset(seed):
    rows = torch.randperm(500, generator=torch.Generator().manual_seed(seed))[:100].tolist()
    return SubsetRandomSampler(rows)


def distributed(rank):
    return torch.utils.data.DistributedSampler(TensorDataset(FEATURES), num_replicas=2, rank=rank)


@pytest.mark.parametrize(
    ("first", "other", "reason"),
    [
        ({"sampler": subset(1)}, {"sampler": subset(1)}, None),
        ({"sampler": subset(1)}, {"sampler": subset(2)}, "sampler.indices: got "),
        ({"sampler": distributed(0)}, {"sampler": distributed(1)}, "sampler.rank: got 1, expected 0 as in a"),
        ({"shuffle": True}, {}, "sampler: got 'SequentialSampler', expected 'RandomSampler' as in a"),
        ({"batch_size": 8}, {"batch_size": 12}, None),
        ({"batch_size": 8, "drop_last": True}, {"batch_size": 12, "drop_last": True}, "samples of an epoch: got 492"),
    ],
)
def test_loaders_that_train_on_other_samples_differ(first, other, reason):
    data = TensorDataset(FEATURES, LABELS)
    found = difference(DataLoader(data, **first), DataLoader(data, **other))
    assert found is None if reason is None else found.startswith(reason)


class Compiled(nn.Module):
    """Has the names of the parameters of a module that ``torch.compile`` returns."""

    def __init__(self):
        super().__init__()
        self._orig_mod = nn.Linear(2, 1)


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (Compiled(), None),
        (nn.Linear(2, 1, bias=False), "model[1]: got None, expected 'model.bias float32 (1,)'"),
        (nn.Linear(2, 1).double(), "model[0]: got 'model.weight float64 (1, 2)', expected 'model.weight float32"),
    ],
)
def test_models_with_other_tensors_differ(other, reason):
    loader = DataLoader(TensorDataset(FEATURES, LABELS), 4)
    found = difference(loader, loader, nn.Linear(2, 1), other)
    assert found is None if reason is None else found.startswith(reason)


def test_description_of_many_tensors_is_bounded(monkeypatch):
    monkeypatch.setattr(agreements, "_MAX_MODEL_BYTES", 200)
    loader, model = DataLoader(TensorDataset(FEATURES, LABELS), 4), nn.Sequential(*(nn.Linear(1, 1) for _ in range(9)))
    other = nn.Sequential(*(nn.Linear(1, 1) for _ in range(8)), nn.Linear(1, 1, bias=False))
    described = describe(loader, vector_of(model), None)["model"]
    assert len(described) < 18
    assert described[-1].startswith(f"{18 - len(described) + 1} others with checksum ")
    assert difference(loader, loader, model, model) is None
    assert difference(loader, loader, model, other) is not None
