"""Values of the training code that a checkpoint contains."""

import random
from collections import deque

import numpy as np
import pytest
import torch

from paceline.train import Kept, KeptVariables, checkpoint, track
from paceline.train.saving.store import check_loadable

VALUES = [
    None,
    True,
    2**70,
    1.5,
    "text",
    b"bytes",
    (1, [2, {"three": 3}]),
    {1, 2},
    deque([(1, np.zeros((2, 3), np.float32)), (2, np.ones(2))], maxlen=5),
    np.float64(0.1),
    np.datetime64("2026-01-01"),
    np.void(b"bytes"),
    np.array(["a", "bc"]),
    np.array(0.1, np.float32),
    torch.arange(3),
]


@pytest.mark.parametrize("value", VALUES, ids=[type(value).__name__ for value in VALUES])
def test_kept_value_survives_a_restart(tmp_path, restart_process, value):
    state = Kept(value=None)
    checkpoint(state=state, path=tmp_path, every_s=0)
    state.value = value
    list(track("a"))
    restart_process()
    restored = Kept(value=None)
    assert checkpoint(state=restored, path=tmp_path)
    assert repr(restored.value) == repr(value)
    assert type(restored.value) is type(value)


def test_kept_generator_continues_and_keeps_its_identity(tmp_path, restart_process):
    state = Kept(generator=np.random.default_rng(1))
    checkpoint(state=state, path=tmp_path)
    state.generator.random(5)
    list(track("a"))
    following = state.generator.random(3).tolist()
    restart_process()
    generator = np.random.default_rng(1)
    checkpoint(state=Kept(generator=generator), path=tmp_path)
    assert generator.random(3).tolist() == following


@pytest.mark.parametrize(
    "value",
    [
        object(),
        lambda: None,
        np.array([object()]),
        [{1: object()}],
        np.ma.array([1.0], mask=[True]),
        np.ones(2).view(np.recarray),
    ],
)
def test_kept_value_of_another_type_is_named(tmp_path, value):
    with pytest.raises(ValueError, match=r"^best: got 'a value of type "):
        checkpoint(state=Kept(best=value), path=tmp_path)


CONTENTS = [
    ([1], [2, 3]),
    ({"a": 1}, {"b": 2}),
    ({1}, {2}),
    (deque([1], maxlen=3), deque([2, 3], maxlen=3)),
    (np.zeros(2), np.ones(2)),
    (torch.zeros(2), torch.ones(2)),
    (torch.tensor(0.0), torch.tensor(1.0)),
    (np.array(0.0), np.array(1.0)),
]


@pytest.mark.parametrize(("before", "after"), CONTENTS, ids=lambda value: type(value).__name__)
def test_other_names_of_a_kept_value_stay_valid_after_a_restart(before, after):
    state = Kept(value=before)
    state.load_state_dict(Kept(value=after).state_dict())
    assert state.value is before
    assert repr(before) == repr(after)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, [1]),
        ([1], (1,)),
        (deque(maxlen=3), deque([1], maxlen=4)),
        (np.zeros(2), np.ones(3)),
        (np.zeros(2), np.ones(2, int)),
        (np.broadcast_to(0.0, 2), np.ones(2)),
        (torch.zeros(2, requires_grad=True), torch.ones(2)),
        (np.float64(1), np.float64(2)),
    ],
    ids=str,
)
def test_kept_value_of_another_form_is_replaced(before, after):
    text = repr(before)
    state = Kept(value=before)
    state.load_state_dict(Kept(value=after).state_dict())
    assert repr(state.value) == repr(after)
    assert repr(before) == text


def test_names_that_shared_a_value_at_the_start_may_differ_later():
    first, shared = Kept(a=[1], b=[2]), []
    state = Kept(a=shared, b=shared)
    state.load_state_dict(first.state_dict())
    assert (state.a, state.b) == ([1], [2])


@pytest.mark.parametrize(
    ("make", "draw"),
    [
        (lambda: random.Random(1), lambda generator: generator.random()),
        (lambda: np.random.RandomState(1), lambda generator: generator.normal()),
        (lambda: np.random.default_rng(1), lambda generator: generator.normal()),
        (lambda: np.random.Generator(np.random.Philox(1)), lambda generator: generator.normal()),
        (lambda: torch.Generator().manual_seed(1), lambda generator: torch.rand(3, generator=generator).tolist()),
    ],
)
def test_random_generators_of_each_library_continue(make, draw):
    state = Kept(generator=make())
    draw(state.generator)
    saved, generator = state.state_dict(), make()
    expected = draw(state.generator)
    check_loadable("state", saved)
    for restored in (Kept(generator=generator), Kept(generator=None)):
        restored.load_state_dict(saved)
        assert draw(restored.generator) == expected
    state = Kept(generator=generator)
    state.load_state_dict(saved)
    assert state.generator is generator


@pytest.mark.parametrize("container", [list, tuple, deque, lambda items: {"games": list(items)}])
def test_generators_within_containers_keep_their_identity(container):
    """Each environment of reinforcement learning has its own generator."""
    generators = [np.random.default_rng(1), random.Random(2)]
    state = Kept(generators=container(generators))
    saved = state.state_dict()
    expected = [generator.random() for generator in generators]
    state.load_state_dict(saved)
    assert [generator.random() for generator in generators] == expected


def test_trained_tensor_is_rejected():
    """After a restart, the optimizer would train another tensor."""
    with pytest.raises(ValueError, match=r"^weight: got 'a tensor that is trained"):
        Kept(weight=torch.zeros(2, requires_grad=True)).state_dict()


def test_kept_name_of_a_buffer_does_not_change_the_model_after_a_restart(tmp_path, restart_process):
    def begin():
        model = torch.nn.BatchNorm1d(1)
        state = Kept(best=model.running_mean)
        checkpoint(model=model, state=state, path=tmp_path, every_s=0)
        return model, state

    model, state = begin()
    for _ in track("a"):
        state.best = torch.tensor([7.0])
        model.running_mean.fill_(2.0)
    restart_process()
    model, state = begin()
    assert (model.running_mean.item(), state.best.item()) == (2.0, 7.0)


def test_bad_value_after_good_checkpoints_is_logged(tmp_path, capsys):
    state = Kept(best=1)
    checkpoint(state=state, path=tmp_path, every_s=0)
    for batch in track(range(3)):
        state.best = object() if batch else 2
    assert "best: got 'a value of type object'" in capsys.readouterr().err


def test_arrays_in_a_file_of_torch_are_tensors():
    """Pickle needs much longer for bytes, and many times the memory."""
    stored = Kept(a=np.arange(3.0)).state_dict()["a"]["value"]
    assert isinstance(stored, torch.Tensor)


def test_kept_variables_survive_a_restart(tmp_path, restart_process):
    variables = {"best": None, "buffer": deque(maxlen=3), "other": 0}
    checkpoint(state=KeptVariables(variables, "best", "buffer"), path=tmp_path)
    for number in track([1, 2]):
        variables["best"] = number
        variables["buffer"].append(number)
        variables["other"] = number
    restart_process()
    buffer = deque(maxlen=3)
    variables = {"best": None, "buffer": buffer, "other": 0}
    checkpoint(state=KeptVariables(variables, "best", "buffer"), path=tmp_path)
    assert variables == {"best": 2, "buffer": deque([1, 2]), "other": 0}
    assert variables["buffer"] is buffer


def test_kept_variables_are_separate_from_the_model(tmp_path, restart_process):
    def train() -> tuple[float, float]:
        model = torch.nn.BatchNorm1d(1)
        variables = {"best": model.running_mean}
        checkpoint(model=model, state=KeptVariables(variables, "best"), path=tmp_path)
        for _ in track([1]):
            model.running_mean += 1
            variables["best"] = torch.tensor([5.0])
        return model.running_mean.item(), variables["best"].item()

    assert train() == (1, 5)
    restart_process()
    assert train() == (1, 5)


def test_unknown_kept_variable_is_refused():
    with pytest.raises(ValueError, match="KeptVariables: got 'bst', expected the name of a variable that has a value"):
        KeptVariables({"best": None}, "bst")


def test_local_variables_are_refused():
    best = None
    with pytest.raises(ValueError, match=r"KeptVariables: got 'locals\(\)', expected globals\(\) or"):
        KeptVariables(locals(), "best")


def test_kept_variable_of_another_type_is_named(tmp_path):
    with pytest.raises(ValueError, match="model: got 'a value of type Linear'"):
        checkpoint(state=KeptVariables({"model": torch.nn.Linear(1, 1)}, "model"), path=tmp_path)


def test_all_variables_of_an_object_survive_a_restart(tmp_path, restart_process):
    class Buffer:
        def __init__(self) -> None:
            self.values, self.position = np.zeros(3), 0

    buffer = Buffer()
    checkpoint(buffer=KeptVariables(vars(buffer)), path=tmp_path)
    for number in track([1, 2]):
        buffer.values[number] = number
        buffer.position += 1
    restart_process()
    restored = Buffer()
    checkpoint(buffer=KeptVariables(vars(restored)), path=tmp_path)
    assert (restored.values.tolist(), restored.position) == ([0, 1, 2], 2)
