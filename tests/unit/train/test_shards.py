"""Every sample is trained once in every epoch, even if workers join, leave, lag or hang."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.train.parameter_server.shards import Lease, SampleShare, Shards

NAMES = "abcd"
PLANS = ["abc", "abc", "ad", "d", "abcd"]  # names of a restart's plan


@settings(max_examples=200)
@given(
    samples=st.integers(1, 40),
    epochs=st.integers(1, 4),
    weights=st.tuples(*[st.floats(0.1, 100)] * 4),
    sizes=st.tuples(*[st.integers(1, 7)] * 4),
    moves=st.lists(
        st.tuples(st.sampled_from(["join", "lose", "lease", "finish", "hang", "restart"]), st.integers(0, 99))
    ),
)
def test_no_sample_is_lost_or_trained_twice(samples, epochs, weights, sizes, moves):
    shares = {name: SampleShare(weight, size) for name, weight, size in zip(NAMES, weights, sizes, strict=True)}

    def plan(names: str) -> Shards:
        return Shards({name: shares[name] for name in names}, epochs)

    shards = plan("abc")
    held: dict[str, list[Lease]] = {name: [] for name in NAMES}
    done: Counter[tuple[int, int]] = Counter()
    saved, saved_done = shards.state(), done.copy()

    def finish_lease(name: str, lease: Lease) -> None:
        held[name].remove(lease)
        if shards.finish(name, lease.number):
            done.update((lease.epoch, index) for index in lease.indices)

    def apply_move(kind: str, which: int) -> None:
        nonlocal shards, saved, saved_done, done
        name = NAMES[which % 4]
        if shards.needs_order and shards.present:
            shards.start_epoch(list(range(samples)))
        if kind == "join" and shards.is_scheduled(name) and name not in shards.present:
            shards.join(name)
        elif kind == "lose" and name in shards.present:
            assert shards.leave(name, failed=False) == sum(len(lease.indices) for lease in held[name])
            held[name] = []
        elif kind == "lease" and name in shards.present and (lease := shards.lease(name)):
            assert 0 < len(lease.indices) <= shares[name].batch_size
            held[name].append(lease)
        elif kind == "finish" and held[name]:
            finish_lease(name, held[name][which % len(held[name])])
        elif kind == "hang" and held[name]:
            shards.revoke_lease(held[name][0].number)
            lease = held[name].pop(0)
            assert not shards.finish(name, lease.number)
        elif kind == "restart" and which % 2:
            saved, saved_done = json.loads(json.dumps(shards.state())), done.copy()
        elif kind == "restart":
            shards = plan(PLANS[which // 2 % len(PLANS)])
            shards.load_state(saved)
            done = saved_done.copy()
            for leases in held.values():
                leases.clear()

    for kind, which in moves:
        apply_move(kind, which)
        assert shards.samples_done == sum(done.values())
    if not shards.present:
        shards.join(min(shards.failures))
    for _ in range(10_000):
        if shards.ended:
            break
        apply_move("", 0)
        for name in shards.present:
            while lease := shards.lease(name):
                held[name].append(lease)
            for lease in list(held[name]):
                finish_lease(name, lease)
    assert shards.ended
    assert done == Counter({(epoch, index): 1 for epoch in range(epochs) for index in range(samples)})


def start_first_epoch(shares: dict[str, SampleShare], samples: int, epochs: int, *, fixed: bool = False) -> Shards:
    """Return shards in the first epoch, which all workers have joined."""
    shards = Shards(shares, epochs, fixed=fixed)
    for name in shares:
        shards.join(name)
    shards.start_epoch(range(samples))
    return shards


def test_sizes_of_shards_are_proportional_to_the_schedule():
    shards = start_first_epoch({"a": SampleShare(30, 1), "b": SampleShare(10, 1)}, samples=8, epochs=3)
    assert (shards.forecast_batches("a"), shards.forecast_batches("b")) == (18, 6)


def test_fast_worker_takes_over_and_straggler_gets_fewer_samples_next():
    shards = start_first_epoch({"quick": SampleShare(1, 1), "slow": SampleShare(1, 1)}, samples=100, epochs=2)
    held = shards.lease("slow")
    for _ in range(99):
        lease = shards.lease("quick")
        assert shards.finish("quick", lease.number)
    assert shards.finish("slow", held.number)
    before = shards.forecast_batches("slow") - shards.done["slow"]
    shards.start_epoch(range(100))
    after = shards.forecast_batches("slow") - shards.done["slow"]
    assert before == 50
    assert after == pytest.approx(25, abs=1)


@pytest.mark.parametrize("samples", [97, 100, 129])
def test_only_the_last_batch_of_an_epoch_may_be_smaller(samples):
    shards = start_first_epoch(
        {"a": SampleShare(5, 16), "b": SampleShare(3, 16), "c": SampleShare(1, 16)}, samples, epochs=1
    )
    sizes = []
    while lease := shards.lease("abc"[len(sizes) % 3]):
        sizes.append(len(lease.indices))
    assert sum(sizes) == samples
    assert sizes[:-1] == [16] * (samples // 16)


@pytest.mark.parametrize(("fixed", "each"), [(False, 47), (True, 60)])
def test_forecast_total_is_the_number_of_batches_of_a_worker(fixed, each):
    shards = start_first_epoch(dict.fromkeys("abc", SampleShare(1, 16)), samples=100, epochs=20, fixed=fixed)
    assert [shards.forecast_batches(name) for name in "abc"] == pytest.approx([each] * 3, abs=1)


def test_shard_of_a_lost_worker_is_redistributed_and_returned():
    shards = start_first_epoch(dict.fromkeys("ab", SampleShare(1, 1)), samples=10, epochs=1)
    shards.lease("b")
    assert shards.leave("b") == 1
    assert shards.forecast_batches("a") == 10
    shards.join("b")
    assert (shards.forecast_batches("a"), shards.forecast_batches("b")) == (5, 5)


def test_at_most_one_epoch_begins_before_the_current_epoch_is_done():
    shards = start_first_epoch({"a": SampleShare(1, 2)}, samples=2, epochs=3)
    first = shards.lease("a")
    assert shards.needs_order
    shards.start_epoch([1, 0])
    assert list(shards.lease("a").indices) == [1, 0]
    assert not shards.needs_order
    shards.finish("a", first.number)
    assert shards.needs_order


def test_cancelled_epoch_does_not_begin():
    shards = start_first_epoch({"a": SampleShare(1, batch_size=2)}, samples=2, epochs=9)
    lease = shards.lease("a")
    assert shards.needs_order  # a worker draws the sample order of the next epoch
    shards.set_epochs(1)
    shards.start_epoch([1, 0])
    assert shards.finish("a", lease.number)
    assert shards.ended
    assert (shards.samples_done, shards.samples) == (2, 2)


def test_fixed_shards_are_taken_over_only_from_lost_workers():
    shards = start_first_epoch(dict.fromkeys("ab", SampleShare(2, batch_size=2)), samples=4, epochs=2, fixed=True)
    mine = shards.lease("a")
    assert shards.finish("a", mine.number)
    assert shards.lease("a") is None, "the remaining samples belong to b"
    shards.leave("b")
    assert sorted([*mine.indices, *shards.lease("a").indices]) == [0, 1, 2, 3]


def test_changed_plan_keeps_failures_and_the_shares_of_the_plan():
    before = start_first_epoch({"a": SampleShare(1, 1), "b": SampleShare(1, 1)}, samples=8, epochs=2)
    before.leave("a")
    after = Shards({"a": SampleShare(100, 1), "c": SampleShare(300, 1)}, epochs=2)
    after.load_state(before.state())
    assert after.failures == {"a": 1, "c": 0}
    after.join("a")
    after.join("c")
    assert (after.forecast_batches("a"), after.forecast_batches("c")) == (4, 12)
