"""The greedy allocator follows its four rules, and nothing else."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.allocate import ClusterJob, Node, Placement, Speeds, check
from paceline.allocate.modelarts.greedy import Greedy
from paceline.errors import InvalidInputError

SIXTEEN = {"device": Speeds.halving_efficiency(16)}


def training(name, nodes, since_s, work=1e5, speeds=SIXTEEN):
    return ClusterJob(name, since_s, work, speeds, held=Placement("pool", nodes), since_s=since_s, started_s=since_s)


def waiting(name, came_s=900.0, speeds=SIXTEEN):
    return ClusterJob(name, came_s, 1e5, speeds, since_s=came_s)


def given_to(jobs, nodes, *, rescale=True, now_s=1000.0, **options):
    pool = [Node("pool", nodes)]
    allocation = Greedy(**options).allocate(jobs, pool, now_s, rescale=rescale)
    check(allocation, jobs, pool)
    return {name: placement.devices for name, placement in allocation.placements.items()}


@pytest.mark.parametrize("rescale", [True, False])
def test_idle_nodes_go_to_the_head_of_the_queue_as_many_as_possible_then_to_the_next(rescale):
    jobs = [training("a", 4, 0.0), waiting("b"), waiting("c"), waiting("d")]
    assert given_to(jobs, 25, rescale=rescale) == {"a": 4, "b": 16, "c": 4, "d": 1}


def test_without_a_queue_the_shortest_training_gets_the_idle_nodes_then_the_next_shortest():
    # The first example of figure 4.
    jobs = [training("1", 8, 0.0), training("2", 4, 300.0), training("3", 4, 600.0), training("4", 2, 900.0)]
    assert given_to(jobs, 20) == {"1": 8, "2": 4, "3": 4, "4": 4}
    jobs = [training("long", 1, 0.0), training("short", 4, 900.0)]
    assert given_to(jobs, 8) == {"long": 4, "short": 4}
    jobs = [training("a", 8, 0.0), training("b", 8, 500.0)]
    assert given_to(jobs, 16) == {"a": 8, "b": 8}, "a full pool stays as it is"


def test_when_the_pool_is_full_the_longest_training_gives_half_to_the_head_of_the_queue():
    # The second example of figure 4.
    jobs = [training("5", 4, 0.0), training("6", 8, 300.0), training("7", 4, 600.0), waiting("8")]
    assert given_to(jobs, 16) == {"5": 2, "6": 8, "7": 4, "8": 2}


def test_the_longest_is_halved_until_the_queue_is_empty_or_nothing_can_be_halved():
    jobs = [training("long", 8, 0.0), training("short", 8, 500.0), waiting("x"), waiting("y"), waiting("z")]
    assert given_to(jobs, 16) == {"long": 1, "short": 8, "x": 4, "y": 2, "z": 1}
    jobs = [training("long", 1, 0.0), training("short", 4, 500.0), waiting("x")]
    assert given_to(jobs, 5) == {"long": 1, "short": 2, "x": 2}
    jobs = [training("a", 1, 0.0), training("b", 2, 500.0), waiting("x"), waiting("y")]
    assert given_to(jobs, 3) == {"a": 1, "b": 1, "x": 1}


def test_without_repeat_one_half_goes_to_the_head_of_the_queue_and_what_it_cannot_use_to_the_next():
    jobs = [training("long", 8, 0.0), waiting("x"), waiting("y")]
    assert given_to(jobs, 8, repeat=False) == {"long": 4, "x": 4}
    single = {"device": Speeds.linear(1)}
    jobs = [training("long", 8, 0.0), waiting("x", speeds=single), waiting("y"), waiting("z")]
    assert given_to(jobs, 8, repeat=False) == {"long": 4, "x": 1, "y": 2, "z": 1}


def test_between_regular_moments_nobody_who_trains_changes():
    full = [training("a", 8, 0.0), waiting("x")]
    idle = [training("a", 4, 0.0)]
    assert given_to(full, 8, rescale=False) == {"a": 8}
    assert given_to(idle, 8, rescale=False) == {"a": 4}


def test_the_time_left_can_be_compared_instead():
    started_first_ends_first = [training("old", 4, 0.0, work=3e3), training("new", 4, 900.0, work=9e5)]
    jobs = [*started_first_ends_first, waiting("x")]
    assert given_to(jobs, 8) == {"old": 2, "new": 4, "x": 2}
    assert given_to(jobs, 8, training_time="left") == {"old": 4, "new": 2, "x": 2}


def test_a_job_that_needs_more_than_one_half_gets_it_from_several_or_nobody_gives():
    wide = {"device": Speeds((4, 8), (3.0, 5.0))}
    jobs = [training("a", 4, 0.0), training("b", 4, 500.0), waiting("x", speeds=wide)]
    assert given_to(jobs, 8) == {"a": 1, "b": 2, "x": 4}
    narrow = [training("a", 1, 0.0), training("b", 4, 500.0), waiting("x", speeds=wide)]
    assert given_to(narrow, 5) == {"a": 1, "b": 4}


def test_devices_that_would_make_a_job_slower_are_not_given_to_it():
    peaked = {"device": Speeds((1, 2, 4), (1.0, 1.5, 1.2))}
    assert given_to([waiting("x", speeds=peaked)], 8) == {"x": 2}


def test_a_job_that_can_never_run_here_holds_nobody_up():
    elsewhere = {"other": Speeds.linear(2)}
    jobs = [waiting("stranger", speeds=elsewhere), training("a", 2, 0.0), waiting("b")]
    assert given_to(jobs, 4) == {"a": 2, "b": 2}
    assert given_to(jobs[:2], 4) == {"a": 4}


def test_every_change_has_a_reason():
    jobs = [training("long", 8, 0.0), training("short", 4, 500.0), waiting("x")]
    allocation = Greedy().allocate(jobs, [Node("pool", 12)], 1000.0, rescale=True)
    assert set(allocation.reasons) == {"long", "x"}


def test_several_pools_and_an_unknown_training_time_are_refused():
    with pytest.raises(InvalidInputError, match="one node"):
        Greedy().allocate([], [Node("a", 1), Node("b", 1)], 0.0, rescale=True)
    with pytest.raises(InvalidInputError, match="so_far"):
        Greedy(training_time="total")


@st.composite
def crowds(draw):
    nodes = draw(st.integers(1, 40))
    free, jobs = nodes, []
    for number in range(draw(st.integers(1, 12))):
        most = draw(st.sampled_from([1, 2, 4, 8, 16]))
        speeds = {"device": Speeds.halving_efficiency(most)}
        held = speeds["device"].most(min(free, draw(st.integers(0, most))))
        work, began_s = draw(st.floats(1.0, 1e6)), float(draw(st.integers(0, 900)))
        placement = Placement("pool", held) if held else None
        jobs.append(
            ClusterJob(f"j{number}", began_s, work, speeds, held=placement, started_s=began_s if held else None)
        )
        free -= held
    return sorted(jobs, key=lambda job: job.arrived_s), nodes


@settings(max_examples=50)
@given(crowds(), st.booleans(), st.sampled_from(["so_far", "left"]))
def test_no_node_is_idle_while_a_job_waits_and_no_job_is_stopped(crowd, repeat, training_time):
    jobs, nodes = crowd
    for rescale in (True, False):
        given = given_to(jobs, nodes, rescale=rescale, repeat=repeat, training_time=training_time)
        assert all(job.name in given for job in jobs if job.held is not None)
        if any(job.name not in given for job in jobs):
            assert sum(given.values()) == nodes  # all of these can run on one node
            if rescale and repeat:
                assert all(given[job.name] == 1 for job in jobs if job.held is not None), "all have been halved"
