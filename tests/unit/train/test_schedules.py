"""A learning rate scheduler in a worker takes the steps of the whole training."""

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, OneCycleLR, ReduceLROnPlateau, StepLR
from torch.utils.data import DataLoader, TensorDataset

from paceline.train import _session, checkpoint, track
from paceline.train.parameter_server._schedules import FollowingScheduler, following_schedulers

from .machines import SAMPLES

EPOCHS, BATCHES = 4, 24  # batches of an epoch


def make_scheduler(kind=CosineAnnealingLR, **options):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    return kind(optimizer, **(options or {"T_max": EPOCHS * BATCHES}))


def train(follower, scheduler, batches, stride=1, every=1, at_ends=False):
    """Train ``batches`` of a worker that trains each ``stride``-th batch; return the steps before each batch."""
    steps = []
    for own, done in enumerate(batches, start=1):
        epoch, last = done // BATCHES, done // BATCHES != (done + stride) // BATCHES
        follower.begin_batch(epoch, done)
        steps.append(scheduler.last_epoch)
        scheduler.optimizer.step()
        if last if at_ends else own % every == 0:
            scheduler.step()
        follower.end_batch(epoch, own, last=last)
    return steps


@pytest.mark.parametrize("every", [1, 4])
@pytest.mark.parametrize("stride", [1, 8])
def test_scheduler_stepped_per_batch_counts_the_batches_of_all_workers(stride, every):
    scheduler = make_scheduler()
    steps = train(FollowingScheduler(scheduler), scheduler, range(0, EPOCHS * BATCHES, stride), stride, every)
    assert steps[-1] == pytest.approx((EPOCHS * BATCHES - stride) / every, abs=stride + 1)


@pytest.mark.parametrize("at_ends", [False, True])
def test_scheduler_of_a_single_worker_takes_exactly_the_steps_of_the_training_code(at_ends):
    scheduler = make_scheduler()
    steps = train(FollowingScheduler(scheduler), scheduler, range(EPOCHS * BATCHES), at_ends=at_ends)
    assert steps == [done // BATCHES if at_ends else done for done in range(EPOCHS * BATCHES)]


def test_worker_that_joins_late_continues_the_schedule():
    batches = range(2 * BATCHES + 4, EPOCHS * BATCHES, 4)
    per_batch, per_epoch = make_scheduler(), make_scheduler()
    steps = train(FollowingScheduler(per_batch), per_batch, batches, 4)
    assert steps[2:] == pytest.approx(list(batches[2:]), abs=4)
    assert per_batch.optimizer.param_groups[0]["lr"] < 0.1, "the cosine has almost reached 0"
    steps = train(FollowingScheduler(per_epoch), per_epoch, batches, 4, at_ends=True)
    assert steps == [done // BATCHES for done in batches]


def test_process_that_loads_a_state_counts_earlier_steps_from_its_first_batch():
    first, second = make_scheduler(), make_scheduler()
    follower = FollowingScheduler(first)
    train(follower, first, range(0, BATCHES, 4), 4)
    second.load_state_dict(first.state_dict())
    late = FollowingScheduler(second)
    late.load_state_dict(follower.state_dict())
    assert train(late, second, [2 * BATCHES], 4) == pytest.approx([2 * BATCHES], abs=4)


@pytest.mark.parametrize("kind", [StepLR, OneCycleLR])
def test_smaller_batches_than_those_of_the_script_do_not_run_ahead_of_the_schedule(kind):
    options = {"step_size": 10} if kind is StepLR else {"max_lr": 1.0, "total_steps": EPOCHS * BATCHES}
    scheduler = make_scheduler(kind, **options)
    follower = FollowingScheduler(scheduler)
    for half in range(2 * EPOCHS * BATCHES):  # two batches of this worker for one of the script
        done = half // 2
        follower.begin_batch(done // BATCHES, done)
        assert scheduler.last_epoch == pytest.approx(done, abs=1)
        scheduler.optimizer.step()
        if scheduler.last_epoch < EPOCHS * BATCHES:
            scheduler.step()
        follower.end_batch(done // BATCHES, (half + 1) / 2, last=False)


def test_repeated_end_of_an_epoch_causes_no_second_step():
    scheduler = make_scheduler(LinearLR, total_iters=EPOCHS)
    follower = FollowingScheduler(scheduler)
    for epoch, last in ((0, True), (0, True), (1, False), (0, True), (1, True)):  # the third end is of a revoked batch
        follower.begin_batch(epoch, 0)
        scheduler.optimizer.step()
        if last:
            scheduler.step()
        follower.end_batch(epoch, 0, last=last)
    reference = make_scheduler(LinearLR, total_iters=EPOCHS)
    for _ in range(2):
        reference.optimizer.step()
        reference.step()
    assert scheduler.last_epoch == 2
    assert scheduler.optimizer.param_groups[0]["lr"] == reference.optimizer.param_groups[0]["lr"]


def test_schedule_that_is_too_short_for_the_training_is_no_longer_followed(capsys):
    scheduler = make_scheduler(OneCycleLR, max_lr=1.0, total_steps=4)
    follower = FollowingScheduler(scheduler)
    train(follower, scheduler, [0, 1], 1)
    follower.begin_batch(0, 20)
    follower.begin_batch(0, 21)
    assert capsys.readouterr().err.count("OneCycleLR no longer follows the other workers") == 1


def test_only_schedulers_that_count_steps_are_followed():
    scheduler = make_scheduler()
    plateau = ReduceLROnPlateau(scheduler.optimizer)
    parts = {"model": torch.nn.Linear(1, 1), "scheduler": scheduler, "plateau": plateau}
    assert list(following_schedulers(parts)) == ["scheduler"]


def test_loop_and_scheduler_of_a_worker_follow_the_whole_training(start_training, monkeypatch):
    training = start_training("a", "b")
    (other,) = training.start_workers("b", hold=10)
    other.wait_until_held(10)
    training.server.wait_until_done(30)
    for name, value in (("SERVER", training.address), ("WORKER", "a")):
        monkeypatch.setenv(f"PACELINE_{name}", value)
    model = torch.nn.Module()
    model.counts = torch.nn.Parameter(torch.zeros(SAMPLES, dtype=torch.float64))
    model.register_buffer("batches", torch.tensor(0))
    model.register_buffer("rows", torch.tensor(0))
    model.register_buffer("average", torch.tensor(0.0))
    scheduler = make_scheduler()
    checkpoint(model=model, scheduler=scheduler)
    loader = DataLoader(TensorDataset(torch.arange(SAMPLES)), 4, shuffle=True)  # the plan has batches of 3
    seen = []
    for (indices,) in (loop := track(loader, epochs=EPOCHS)):
        seen.append((loop.done, loop.total, scheduler.last_epoch, loop.batch))
        if len(seen) == 3:
            other.resume()
        with torch.no_grad():
            model.counts[indices] += 1
        model.batches += 1
        scheduler.optimizer.step()
        scheduler.step()
    total = EPOCHS * len(loader)
    assert [done_and_total[:2] for done_and_total in seen[:3]] == [(7, total), (8, total), (9, total)]
    assert seen[2][2:] == (9, 9), "the scheduler has the steps of both workers from its second step on"
    assert (loop.done, loop.total) == (total, total)
    last = _session.current.last
    assert last.done == last.total == len(seen), "the progress line counts the batches of this worker"
    training.finish_all([other])
    assert model.counts.tolist() == [EPOCHS] * SAMPLES
