"""The processes of data-parallel training read the same data and keep the same state, or the job fails by name.

The processes run ``parallel_forms.py``; they and torch's collectives are real.
"""

import copy
import json
import os
from collections import Counter

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from paceline.train import checkpoint, data_parallel, track

from .machines import HERE, INCLUDE, LIMIT_S

ROOT = HERE.parents[2]


@pytest.fixture
def train(tmp_path, fork):
    """Return a function that runs the script in a form; a second process joins unless it trains ``alone``."""

    def run_script(form, *options, fails=False):
        folder = tmp_path / " ".join([form, *options])
        folder.mkdir()
        (folder / "control.json").write_text('{"devices": 1}')
        environment = {
            **os.environ,
            "PYTHONPATH": f"{INCLUDE}:{ROOT}",
            "PACELINE_OUTPUT": str(folder),
            "PACELINE_CHECKPOINT": str(folder / "checkpoint"),
            "PACELINE_CONTROL": str(folder / "control.json"),
            "SEEN": str(folder / "seen.jsonl"),
        }
        with (folder / "log").open("w") as out, (folder / "errors").open("w") as errors:
            command = [HERE / "parallel_forms.py", form, fork.args[0], *options]
            process = fork(command, env=environment, stdout=out, stderr=errors, process_group=0)
            code = process.wait(LIMIT_S)
        text = (folder / "errors").read_text()
        assert code == int(fails), text
        return text if fails else folder

    return run_script


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ("enumerate", r"enumerate(track(...)) counts from 0 in a process that joins: use track(...).enumerate()"),
        ("own number", "differs between the processes"),
        ("own number, no_sync", "some processes accumulate this batch (no_sync) and others do not"),
        ("own order", "a process that is to join has other data than the first one"),
        ("second module", "optimizer: got 'a parameter of shape (1, 3) that is not in the model of data_parallel()'"),
        ("unwrapped", "a gradient of linear.bias comes from a call of the original model"),
        ("two backwards", "linear.bias has 2 gradients from 1 call(s) of the model"),
        ("unsaved optimizer", "a process that joins would not receive the state of Adam: pass it to checkpoint("),
        ("unsaved second optimizer", "a process that joins would not receive the state of SGD"),
    ],
)
def test_training_that_differs_between_processes_fails_by_name(train, form, message):
    assert message in train(form, fails=True)


@pytest.mark.parametrize(
    "form", ["plain", "accumulation", "two calls", "counters", "bf16", "optimizer in a batch", "average"]
)
def test_result_is_that_of_one_process(train, form):
    joined, alone = (torch.load(train(form, *options) / "model.pt") for options in ((), ("alone",)))
    tolerance = 0.02 if form == "bf16" else 1e-9
    if form == "counters":
        assert 0 <= joined.pop("pointer") < 10
    for name in joined:
        torch.testing.assert_close(joined[name], alone[name], rtol=tolerance, atol=tolerance)


def test_error_in_the_loop_of_a_process_is_shown(train):
    assert "KeyError: 'a bad label in row 17'" in train("exception", fails=True)


@pytest.mark.parametrize("which", ["lead", "follower"])
def test_batch_that_only_some_processes_skip_is_named(train, which):
    assert "each process must make the same calls in each batch" in train("skips", which, fails=True)


def test_checkpoint_of_a_module_around_the_model_is_restored(tmp_path, restart_process):
    def save_and_restore():
        torch.manual_seed(restart_process() is None)
        model = torch.optim.swa_utils.AveragedModel(data_parallel(torch.nn.Linear(2, 1)))
        return checkpoint(model=model, path=tmp_path, every_s=0), model

    _, model = save_and_restore()
    list(track(DataLoader(TensorDataset(torch.ones(3)))))
    torch.nn.init.zeros_(model.module.module.weight)
    restored, model = save_and_restore()
    assert restored


def test_copy_of_the_model_belongs_to_no_group():
    model = data_parallel(torch.nn.Linear(1, 1))
    copied = copy.deepcopy(model)
    assert copied.module is not model.module
    assert torch.equal(copied(torch.ones(1)), model(torch.ones(1)))


def test_joining_process_draws_the_same_random_numbers_without_a_seed(train):
    folder = train("unseeded")
    split = json.loads((folder / "split.json").read_text())
    seen = [json.loads(line) for line in (folder / "seen.jsonl").open()]
    for epoch in range(3):
        trained = Counter(index for number, indices in seen for index in indices if number == epoch)
        assert trained == Counter(split)


def test_attribute_of_the_model_is_explained():
    class Model(torch.nn.Linear):
        def loss(self):
            """A method of the model."""

    model = data_parallel(Model(1, 1))
    with pytest.raises(AttributeError, match=r"the model's 'loss' is model\.module\.loss\. To train, call model\("):
        model.loss()
    assert not hasattr(model, "missing")
    with pytest.raises(RuntimeError, match="put several models into one module"):
        data_parallel(Model(1, 1))
    checkpoint(model=model)
