"""Interrupted anywhere, training ends as undisturbed, with all of torch's samplers, schedulers and optimizers."""

import contextlib
import inspect
import itertools
import tempfile
from dataclasses import dataclass

import pytest
import torch
import torch._dynamo  # the first optimizer would import it, after `tests/conftest.py` has frozen the others
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.optim import lr_scheduler, swa_utils
from torch.utils import data

from paceline.train import Kept, _session, checkpoint, track, track_epochs

SAMPLES, BATCH_SIZE, EPOCHS = 10, 3, 3
SET = data.TensorDataset(torch.arange(float(SAMPLES)).div(SAMPLES).reshape(-1, 1).expand(-1, 4).contiguous())

SAMPLERS = {
    "SequentialSampler": lambda: data.SequentialSampler(SET),
    "RandomSampler": lambda: data.RandomSampler(SET),
    "SubsetRandomSampler": lambda: data.SubsetRandomSampler(range(0, SAMPLES, 2)),
    "WeightedRandomSampler": lambda: data.WeightedRandomSampler([1.0, 2.0] * 5, SAMPLES),
    "DistributedSampler": lambda: data.DistributedSampler(SET, num_replicas=2, rank=1),
    "BatchSampler": lambda: data.BatchSampler(data.RandomSampler(SET), BATCH_SIZE, drop_last=True),
}
OPTIMIZERS = [
    "ASGD",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "LBFGS",
    "Muon",
    "NAdam",
    "RAdam",
    "RMSprop",
    "Rprop",
    "SGD",
]
SCHEDULERS = {
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda step: 0.9**step),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda step: 0.9),
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2, gamma=0.5),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [2, 5], gamma=0.5),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o, total_iters=3),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, total_iters=6),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, gamma=0.8),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, total_iters=20),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=4),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, T_0=2),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=3, cycle_momentum=False),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=40, cycle_momentum=False),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0),
    "SWALR": lambda o: swa_utils.SWALR(o, swa_lr=0.02, anneal_epochs=4),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o, total_iters=2), lr_scheduler.ExponentialLR(o, 0.9)], [2]
    ),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o, total_iters=2), lr_scheduler.ExponentialLR(o, 0.9)]
    ),
}
# SparseAdam needs sparse gradients, which this model does not have.
WITHOUT_TEST = {"Optimizer", "SparseAdam", "Sampler", "LRScheduler", "_LRScheduler"}


class Interrupted(Exception):
    """Stands for the end of the process."""


@dataclass(frozen=True)
class Case:
    """A training script."""

    form: str
    sampler: str
    optimizer: str
    scheduler: str
    each: str
    every_s: float


class Script:
    """A run of the script that raises ``Interrupted`` at its place number ``until``."""

    def __init__(self, case, folder, until):
        self.case, self.places, self.until = case, itertools.count(), until
        _session.current = _session.Session(itertools.count().__next__)  # each reading is a second later
        torch.manual_seed(1)
        sampler = SAMPLERS[case.sampler]()
        batches = {"sampler": sampler} if case.sampler == "BatchSampler" else {"batch_size": BATCH_SIZE}
        self.loader = data.DataLoader(SET, **{"sampler": sampler, "batch_size": None} | batches)
        self.model = torch.nn.Sequential(torch.nn.Linear(4, 4, bias=False), torch.nn.Dropout(0.3))
        self.optimizer = getattr(torch.optim, case.optimizer)(self.model.parameters(), lr=0.05)
        self.scheduler = SCHEDULERS[case.scheduler](self.optimizer)
        self.average = swa_utils.AveragedModel(self.model)
        self.noise, self.kept = torch.zeros(4), Kept(best=None, losses=[])
        checkpoint(
            model=self.model,
            optimizer=self.optimizer,
            scheduler=self.scheduler,
            average=self.average,
            kept=self.kept,
            path=folder,
            every_s=case.every_s,
        )

    def pass_place(self):
        if next(self.places) == self.until:
            raise Interrupted

    def run(self):
        if self.case.form == "one loop":
            loop = track(self.loader, epochs=EPOCHS)
            for (features,) in loop:
                self.train(features)
                if loop.epoch_end:
                    self.end_epoch()
        else:
            for _ in track_epochs(EPOCHS):
                self.pass_place()
                self.noise = torch.rand(4) / 10  # drawn at the start of the epoch, as negative samples
                self.model.train()
                for (features,) in track(self.loader):
                    self.train(features)
                self.end_epoch()
        return [
            [parameter.tolist() for parameter in (*self.model.parameters(), *self.average.parameters())],
            self.optimizer.param_groups[0]["lr"],
            self.kept,
            torch.rand(()).item(),
        ]

    def train(self, features):
        def evaluate():
            self.optimizer.zero_grad()
            self.loss = (self.model(features + self.noise) - features.flip(0)).square().mean()
            self.loss.backward()
            return self.loss

        self.optimizer.step(evaluate)
        self.kept.losses.append(self.loss.item())
        self.pass_place()
        if self.case.each == "batch":
            self.schedule()

    def end_epoch(self):
        self.model.eval()
        self.pass_place()
        if self.case.each == "epoch":
            self.schedule()
        self.average.update_parameters(self.model)
        self.kept.best = min(self.kept.losses[-1], self.kept.best or 9.0)
        self.model.train()
        self.pass_place()

    def schedule(self):
        needs_metric = isinstance(self.scheduler, lr_scheduler.ReduceLROnPlateau)
        self.scheduler.step(*([self.loss.item()] if needs_metric else []))


def run(case, interruptions=()):
    """Run the script with interruptions; return its result."""
    with tempfile.TemporaryDirectory() as folder:
        for until in interruptions:
            with contextlib.suppress(Interrupted):
                Script(case, folder, until).run()
        return Script(case, folder, None).run()


cases = st.builds(
    Case,
    form=st.sampled_from(["one loop", "loop over epochs"]),
    sampler=st.sampled_from(sorted(SAMPLERS)),
    optimizer=st.sampled_from(OPTIMIZERS),
    scheduler=st.sampled_from(sorted(SCHEDULERS)),
    each=st.sampled_from(["batch", "epoch"]),
    every_s=st.sampled_from([0, 7]),
)


@settings(max_examples=50)
@given(cases, st.lists(st.integers(0, 25), min_size=1, max_size=3))
def test_interrupted_training_ends_like_an_undisturbed_one(case, interruptions):
    assert run(case, interruptions) == run(case)


@pytest.mark.parametrize(
    ("tested", "module", "base"),
    [
        (SAMPLERS, data, data.Sampler),
        (OPTIMIZERS, torch.optim, torch.optim.Optimizer),
        (SCHEDULERS, lr_scheduler, lr_scheduler.LRScheduler),
    ],
)
def test_each_class_of_torch_is_tested(tested, module, base):
    names = {name for name, value in vars(module).items() if inspect.isclass(value) and issubclass(value, base)}
    assert names - WITHOUT_TEST <= set(tested)
