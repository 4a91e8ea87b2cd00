"""The state of a worker's optimizer and scheduler outlives the process: the parameter server keeps it."""

import io
import pickle

import pytest
import torch

from paceline.train.parameter_server._kept import KeptParts, allocate_packed, max_packed_bytes
from paceline.train.parameter_server._schedules import FollowingScheduler
from paceline.train.parameter_server._training import SharedTraining
from paceline.train.parameter_server.shards import SampleShare

from .machines import make_joined_training


class Process:
    """The objects of a worker's process."""

    def __init__(self):
        self.model = torch.nn.Linear(3, 1)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.1)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=100)
        self.follower = FollowingScheduler(self.scheduler)
        parts = {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler}
        self.kept = KeptParts(parts, {"scheduler": self.follower})

    def train(self, batches):
        for batch in range(batches):
            self.follower.begin_batch(0, batch)
            self.optimizer.zero_grad()
            self.model(torch.ones(1, 3)).sum().backward()
            self.optimizer.step()
            self.scheduler.step()
            self.follower.end_batch(0, batch + 1, last=False)


def test_next_process_continues_with_the_moments_and_the_schedule_of_the_previous_process():
    first, second = Process(), Process()
    first.train(5)
    assert second.kept.restore(first.kept.pack())
    for before, after in zip(first.model.parameters(), second.model.parameters(), strict=True):
        moments, restored = first.optimizer.state[before], second.optimizer.state[after]
        assert {name: value.tolist() for name, value in restored.items()} == {
            name: value.tolist() for name, value in moments.items()
        }
    assert second.scheduler.last_epoch == 5
    assert second.optimizer.param_groups[0]["lr"] == first.optimizer.param_groups[0]["lr"]
    second.follower.begin_batch(0, 40)
    assert second.scheduler.last_epoch == 40, "the follower knows that the scheduler counts batches"


class Code:
    def __reduce__(self):
        return print, ("code from the bytes has run",)


def bytes_tensor(data):
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def saved(content):
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


OTHER_NAMES = saved({"parts": {"optimizer": {}}, "kinds": {}, "schedulers": {}})


@pytest.mark.parametrize("data", [b"nonsense", pickle.dumps(Code(), protocol=2), saved({"parts": Code()}), OTHER_NAMES])
def test_state_that_does_not_fit_is_ignored_with_a_log_line(data, capsys):
    process = Process()
    process.train(2)
    assert not process.kept.restore(bytes_tensor(data))
    logged = capsys.readouterr()
    assert "the state kept by the parameter server does not fit and is ignored" in logged.err
    assert "code from the bytes has run" not in logged.out
    assert process.scheduler.last_epoch == 2


def test_state_that_fits_only_in_part_changes_nothing():
    first, second = Process(), Process()
    first.train(5)
    content = torch.load(io.BytesIO(bytes(first.kept.pack().tolist())), weights_only=True)
    content["parts"]["scheduler"] = None
    assert not second.kept.restore(bytes_tensor(saved(content)))
    assert not second.optimizer.state


def test_state_of_another_kind_of_optimizer_is_ignored(capsys):
    weights = [torch.nn.Parameter(torch.ones(1))]
    adam, sgd = torch.optim.Adam(weights), torch.optim.SGD(weights, lr=0.5)
    assert not KeptParts({"optimizer": sgd}, {}).restore(KeptParts({"optimizer": adam}, {}).pack())
    assert "optimizer: got 'SGD', expected Adam as in the other workers" in capsys.readouterr().err
    assert sgd.param_groups[0]["lr"] == 0.5


def test_size_of_a_kept_state_is_limited():
    limit = max_packed_bytes(3)
    assert len(allocate_packed(limit, 3)) == limit
    with pytest.raises(ValueError, match=f"state to keep: got {limit + 1} bytes, expected at most {limit}"):
        allocate_packed(limit + 1, 3)


def test_state_that_is_too_large_or_cannot_be_saved_is_not_packed():
    process = Process()
    with pytest.raises(ValueError, match=r"optimizer, scheduler: got .* bytes, expected at most 100"):
        process.kept.pack(100)
    process.optimizer.param_groups[0]["hook"] = lambda: None
    with pytest.raises(ValueError, match=r"optimizer, scheduler: cannot be saved: .*lambda"):
        process.kept.pack()


def test_worker_gets_its_own_state_and_a_new_worker_the_newest_of_any_worker():
    training = make_joined_training("abc", batch_size=1)
    assert training.kept_for("a") is None
    training.keep("b", 1, torch.tensor([1], dtype=torch.uint8))
    training.keep("a", 0, torch.tensor([2], dtype=torch.uint8))
    training.keep("b", 1, torch.tensor([3], dtype=torch.uint8))
    training.keep("a", 7, torch.tensor([4], dtype=torch.uint8))  # not from the worker's connection
    assert [training.kept_for(name).tolist() for name in "abc"] == [[2], [3], [3]]
    restarted = SharedTraining({name: SampleShare(1, 1) for name in "abc"}, stuck_s=60.0)
    restarted.restore(training.content())
    assert [restarted.kept_for(name).tolist() for name in "abc"] == [[3], [3], [3]], "a checkpoint has the newest state"


def test_worker_that_leaves_and_returns_continues_with_its_state(start_training):
    training = start_training("a", "b")
    leaving, staying = training.start_workers("ab")
    leaving.hold(after=3)
    leaving.wait_until_held(3)
    leaving.process.terminate()
    leaving.resume()
    assert leaving.wait_for_end() == 143
    returned = training.start_worker("a", hold=6)
    returned.wait_until_held(6)
    training.finish_and_check([staying, returned])
    assert "continuing with the state of steps that the parameter server has kept" in returned.log
    steps = [int(line) for line in (returned.output / "steps").read_text().split()]
    assert steps == list(range(1, len(steps) + 1))
    assert len(steps) > 6
