"""However often processes join and leave, training ends like that of one process, in many forms of training code.

The processes run ``parallel_combinations.py``; they and torch's collectives are real.
"""

import json
import os

import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from paceline.train.progress import parse_line

from .machines import HERE, INCLUDE, LIMIT_S

ROOT = HERE.parents[2]
# Not L-BFGS, Muon and Rprop: they turn a rounding error, which the order of additions causes, into another step.
OPTIMIZERS = ["ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "SGD"]

cases = st.fixed_dictionaries(
    {
        "form": st.sampled_from(["plain", "accumulation", "clipping", "two calls", "closure"]),
        "sampler": st.sampled_from(["in order", "shuffled", "weighted", "distributed", "shrinking"]),
        "drop_last": st.booleans(),
        "optimizer": st.sampled_from(OPTIMIZERS),
        "scheduler": st.sampled_from(["OneCycleLR", "StepLR"]),
        "each": st.sampled_from(["batch", "epoch"]),
        "processes": st.dictionaries(st.integers(0, 11).map(str), st.integers(1, 3), min_size=1, max_size=4),
    }
)
SHORTER_EPOCHS = {
    "form": "accumulation", "sampler": "shrinking", "drop_last": False, "optimizer": "SGD", "scheduler": "StepLR",
    "each": "epoch", "processes": {"2": 2, "6": 3},
}  # fmt: skip


def train(folder, case, fork):
    """Run the script, and return what it saves and the numbers of processes."""
    folder.mkdir()
    (folder / "case.json").write_text(json.dumps(case))
    (folder / "control.json").write_text('{"devices": 1}')
    environment = {
        **os.environ,
        "PYTHONPATH": f"{INCLUDE}:{ROOT}",
        "PACELINE_OUTPUT": str(folder),
        "PACELINE_CONTROL": str(folder / "control.json"),
    }
    with (folder / "log").open("w") as out, (folder / "errors").open("w") as errors:
        command = [HERE / "parallel_combinations.py", folder / "case.json", fork.args[0]]
        process = fork(command, env=environment, stdout=out, stderr=errors, process_group=0)
        assert process.wait(LIMIT_S) == 0, (folder / "errors").read_text()
    lines = filter(None, map(parse_line, (folder / "log").open()))
    return torch.load(folder / "result.pt"), [line.devices_in_force for line in lines]


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cases)
@example(SHORTER_EPOCHS)
def test_training_ends_like_that_of_one_process(tmp_path_factory, fork, case):
    folder = tmp_path_factory.mktemp("case")
    (*weights, steps), devices = train(folder / "joined", case, fork)
    assert max(devices) == max(case["processes"].values())
    (*expected, expected_steps), devices = train(folder / "alone", case | {"processes": {}}, fork)
    assert max(devices) == 1
    assert steps == expected_steps
    for state, right in zip(weights, expected, strict=True):
        for name in right:
            torch.testing.assert_close(state[name], right[name], rtol=1e-7, atol=1e-9)
