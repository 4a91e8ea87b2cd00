"""The greedy allocator follows its four published rules exactly."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.allocate import ClusterJob, Greedy, Node, Placement, Speeds, check
from paceline.errors import InvalidInputError

SIXTEEN = {"device": Speeds.doubling_efficiency(16)}


def running_job(name, nodes, since_s, work=1e5, speeds=SIXTEEN):
    return ClusterJob(name, since_s, work, speeds, held=Placement("pool", nodes), since_s=since_s, started_s=since_s)


def queued_job(name, arrived_s=900.0, speeds=SIXTEEN):
    return ClusterJob(name, arrived_s, 1e5, speeds, since_s=arrived_s)


def devices_by_job(jobs, nodes, *, rescale=True, now_s=1000.0, **options):
    pool = [Node("pool", nodes)]
    allocation = Greedy(**options).allocate(jobs, pool, now_s, rescale=rescale)
    check(allocation, jobs, pool)
    return {name: placement.devices for name, placement in allocation.placements.items()}


@pytest.mark.parametrize("rescale", [True, False])
def test_queued_jobs_get_idle_nodes_in_order(rescale):
    jobs = [running_job("a", 4, 0.0), queued_job("b"), queued_job("c"), queued_job("d")]
    assert devices_by_job(jobs, 25, rescale=rescale) == {"a": 4, "b": 16, "c": 4, "d": 1}


def test_jobs_with_shortest_training_times_get_idle_nodes_without_queue():
    # first example in figure 4 of the paper
    jobs = [
        running_job("1", 8, 0.0),
        running_job("2", 4, 300.0),
        running_job("3", 4, 600.0),
        running_job("4", 2, 900.0),
    ]
    assert devices_by_job(jobs, 20) == {"1": 8, "2": 4, "3": 4, "4": 4}
    jobs = [running_job("long", 1, 0.0), running_job("short", 4, 900.0)]
    assert devices_by_job(jobs, 8) == {"long": 4, "short": 4}
    jobs = [running_job("a", 8, 0.0), running_job("b", 8, 500.0)]
    assert devices_by_job(jobs, 16) == {"a": 8, "b": 8}, "the allocation of a full pool does not change"


def test_full_pool_halves_longest_job_for_head_of_queue():
    # second example in figure 4 of the paper
    jobs = [running_job("5", 4, 0.0), running_job("6", 8, 300.0), running_job("7", 4, 600.0), queued_job("8")]
    assert devices_by_job(jobs, 16) == {"5": 2, "6": 8, "7": 4, "8": 2}


def test_halving_repeats_until_queue_is_empty_or_no_job_can_be_halved():
    jobs = [
        running_job("long", 8, 0.0),
        running_job("short", 8, 500.0),
        queued_job("x"),
        queued_job("y"),
        queued_job("z"),
    ]
    assert devices_by_job(jobs, 16) == {"long": 1, "short": 8, "x": 4, "y": 2, "z": 1}
    jobs = [running_job("long", 1, 0.0), running_job("short", 4, 500.0), queued_job("x")]
    assert devices_by_job(jobs, 5) == {"long": 1, "short": 2, "x": 2}
    jobs = [running_job("a", 1, 0.0), running_job("b", 2, 500.0), queued_job("x"), queued_job("y")]
    assert devices_by_job(jobs, 3) == {"a": 1, "b": 1, "x": 1}


def test_without_repeated_halving_the_next_job_in_queue_gets_unused_nodes():
    jobs = [running_job("long", 8, 0.0), queued_job("x"), queued_job("y")]
    assert devices_by_job(jobs, 8, repeat=False) == {"long": 4, "x": 4}
    single = {"device": Speeds.linear(1)}
    jobs = [running_job("long", 8, 0.0), queued_job("x", speeds=single), queued_job("y"), queued_job("z")]
    assert devices_by_job(jobs, 8, repeat=False) == {"long": 4, "x": 1, "y": 2, "z": 1}


def test_running_jobs_keep_their_devices_between_regular_times():
    full = [running_job("a", 8, 0.0), queued_job("x")]
    idle = [running_job("a", 4, 0.0)]
    assert devices_by_job(full, 8, rescale=False) == {"a": 8}
    assert devices_by_job(idle, 8, rescale=False) == {"a": 4}


def test_option_left_compares_jobs_by_remaining_training_time():
    jobs = [running_job("old", 4, 0.0, work=3e3), running_job("new", 4, 900.0, work=9e5), queued_job("x")]
    assert devices_by_job(jobs, 8) == {"old": 2, "new": 4, "x": 2}
    assert devices_by_job(jobs, 8, training_time="left") == {"old": 4, "new": 2, "x": 2}


def test_job_that_needs_nodes_of_several_jobs_gets_all_of_them_or_waits():
    wide = {"device": Speeds((4, 8), (3.0, 5.0))}
    jobs = [running_job("a", 4, 0.0), running_job("b", 4, 500.0), queued_job("x", speeds=wide)]
    assert devices_by_job(jobs, 8) == {"a": 1, "b": 2, "x": 4}
    narrow = [running_job("a", 1, 0.0), running_job("b", 4, 500.0), queued_job("x", speeds=wide)]
    assert devices_by_job(narrow, 5) == {"a": 1, "b": 4}


def test_job_gets_no_device_that_would_slow_it_down():
    peaked = {"device": Speeds((1, 2, 4), (1.0, 1.5, 1.2))}
    assert devices_by_job([queued_job("x", speeds=peaked)], 8) == {"x": 2}


def test_job_that_cannot_run_on_pool_does_not_block_queue():
    elsewhere = {"other": Speeds.linear(2)}
    jobs = [queued_job("stranger", speeds=elsewhere), running_job("a", 2, 0.0), queued_job("b")]
    assert devices_by_job(jobs, 4) == {"a": 2, "b": 2}
    assert devices_by_job(jobs[:2], 4) == {"a": 4}


def test_every_change_has_a_reason():
    jobs = [running_job("long", 8, 0.0), running_job("short", 4, 500.0), queued_job("x")]
    allocation = Greedy().allocate(jobs, [Node("pool", 12)], 1000.0, rescale=True)
    assert {name: reason.kind for name, reason in allocation.reasons.items()} == {"long": "halved", "x": "takes_over"}


def test_several_pools_and_unknown_training_times_are_rejected():
    with pytest.raises(InvalidInputError, match="one node"):
        Greedy().allocate([], [Node("a", 1), Node("b", 1)], 0.0, rescale=True)
    with pytest.raises(InvalidInputError, match="so_far"):
        Greedy(training_time="total")


@st.composite
def cluster_states(draw):
    nodes = draw(st.integers(1, 40))
    free, jobs = nodes, []
    for number in range(draw(st.integers(1, 12))):
        max_devices = draw(st.sampled_from([1, 2, 4, 8, 16]))
        speeds = {"device": Speeds.doubling_efficiency(max_devices)}
        held = speeds["device"].largest_count(min(free, draw(st.integers(0, max_devices))))
        work, started_s = draw(st.floats(1.0, 1e6)), float(draw(st.integers(0, 900)))
        placement = Placement("pool", held) if held else None
        jobs.append(
            ClusterJob(f"j{number}", started_s, work, speeds, held=placement, started_s=started_s if held else None)
        )
        free -= held
    return sorted(jobs, key=lambda job: job.arrived_s), nodes


@settings(max_examples=50)
@given(cluster_states(), st.booleans(), st.sampled_from(["so_far", "left"]))
def test_no_node_is_idle_while_jobs_wait_and_no_job_is_stopped(state, repeat, training_time):
    jobs, nodes = state
    for rescale in (True, False):
        devices = devices_by_job(jobs, nodes, rescale=rescale, repeat=repeat, training_time=training_time)
        assert all(job.name in devices for job in jobs if job.held is not None)
        if any(job.name not in devices for job in jobs):
            assert sum(devices.values()) == nodes  # in this test, every job can run on one node
            if rescale and repeat:
                assert all(devices[job.name] == 1 for job in jobs if job.held is not None), "all jobs are halved"
