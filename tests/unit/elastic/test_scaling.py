"""Scaling finds and removes the bottleneck of a simulated training job."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.control import Limits
from paceline.elastic import Scaling, Step, Team, TeamConfiguration, TeamSample
from paceline.elastic._scaling import _raise_floors
from paceline.elastic.reassign import Floors, reassign
from paceline.errors import InvalidInputError
from paceline.simulate.parameter_servers import Workload, steady_state

LINK_BYTES_S = 125e6  # 1 Gbit/s
HOUR_S = 3600
# As for a ResNet, a batch takes some core-seconds on a worker and far fewer on a parameter server.
COMPUTES = Workload(compute_core_s=10.0, update_core_s=0.05, server_cores=8, state_bytes=1e6)
KINDS = {
    "computes": COMPUTES,
    "more cores than threads": Workload(10.0, 0.5, worker_cores=3, update_core_s=0.02, state_bytes=1e6),
    "network": Workload(4.0, worker_cores=8, update_core_s=0.02, server_cores=4, state_bytes=1e8),
    "server short of cores": Workload(1.0, worker_cores=8, update_core_s=0.5, server_cores=8, state_bytes=1e6),
    "server of one thread": Workload(1.0, worker_cores=8, update_core_s=0.2, server_cores=1, state_bytes=1e6),
}


def add_noise(sample: TeamSample, rng: random.Random, noise: float) -> TeamSample:
    def perturb(values: dict[str, float]) -> dict[str, float]:
        return {name: value * (1 + rng.gauss(0, noise)) for name, value in values.items()}

    return TeamSample(
        sample.speed * (1 + rng.gauss(0, noise)), perturb(dict(sample.used)), perturb(dict(sample.network))
    )


def simulate_steps(
    scaling: Scaling, workload: Workload, *, seconds: int = HOUR_S, noise: float = 0.01, seed: int = 0
) -> Iterator[tuple[int, Step]]:
    rng = random.Random(seed)
    for second in range(seconds):
        now = steady_state(workload, scaling.configuration, LINK_BYTES_S)
        step = scaling.decide(add_noise(now, rng, noise))
        if step is not None:
            yield second, step


def scaling_steps_at_equal_usage(scaling, used, *, speed=lambda configuration: 5.0, link=0.1, samples=400):
    """Return the scaling steps if all nodes use the share ``used`` of their cores and ``link`` of their links."""
    steps = []
    for _ in range(samples):
        cores = {name: used * one for name, one in scaling.configuration.nodes.items()}
        steps.append(scaling.decide(TeamSample(speed(scaling.configuration), cores, dict.fromkeys(cores, link))))
    return [step for step in steps if step is not None]


def best_speed(workload: Workload, budget: float) -> float:
    shares = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6)
    configurations = (
        TeamConfiguration((budget * share / servers,) * servers, (budget * (1 - share) / workers,) * workers)
        for servers in (1, 2, 3, 4, 6, 8)
        for workers in (2, 3, 4, 6, 8, 12, 16, 24, 32)
        for share in shares
    )
    return max(steady_state(workload, one, LINK_BYTES_S).speed for one in configurations)


@pytest.mark.parametrize("kind", KINDS)
def test_search_settles_near_the_best_speed(kind):
    scaling = Scaling(24.0, Team(max_servers=8, max_workers=32))
    steps = list(simulate_steps(scaling, KINDS[kind]))
    reached = steady_state(KINDS[kind], scaling.configuration, LINK_BYTES_S).speed
    assert reached >= 0.9 * best_speed(KINDS[kind], 24.0)
    assert scaling.settled
    assert steps[-1][1].kind == "settled"
    assert steps[-1][0] < HOUR_S / 2


def test_team_that_uses_all_cores_grows_by_half_up_to_the_budget():
    steps = scaling_steps_at_equal_usage(Scaling(budget=12.0), 0.98, speed=lambda now: 1.0)
    taken = [(step.kind, round(step.configuration.cores, 3)) for step in steps]
    assert taken == [("up", 4.5), ("up", 6.75), ("up", 10.125), ("up", 12.0), ("settled", 12.0)]


def first_step_kind(workload: Workload, configuration: TeamConfiguration) -> Step:
    options = Team(max_servers=8, max_workers=32)
    scaling = Scaling(configuration.cores, options, configuration=configuration)
    return next(step for _, step in simulate_steps(scaling, workload, noise=0.002))


def test_workers_with_idle_cores_increase_in_number():
    step = first_step_kind(KINDS["more cores than threads"], TeamConfiguration((0.1,), (6.0, 6.0)))
    assert step.kind == "worker"
    assert len(step.configuration.workers) == 4, "as many workers as could use the idle cores"
    assert step.configuration.cores == pytest.approx(12.1)
    assert "cores are used: 2 more workers" in step.reason


def test_reason_of_a_step_has_one_core_in_the_singular():
    scaling = Scaling(budget=3.0, configuration=TeamConfiguration((0.2,), (0.4, 0.4)))
    assert scaling_steps_at_equal_usage(scaling, 0.97)[0].reason == "97 % of 1 core is used: 0.5 more cores"


def test_parameter_server_is_added_for_a_saturated_link():
    step = first_step_kind(KINDS["network"], TeamConfiguration((0.2,), (1.0,) * 16))
    assert (step.kind, len(step.configuration.servers)) == ("server", 2)
    assert step.reason.startswith("network of ps-0 at 9")
    assert step.reason.endswith("%: 1 more parameter server")


def test_parameter_server_short_of_cores_gets_idle_cores_of_workers():
    step = first_step_kind(KINDS["server short of cores"], TeamConfiguration((0.5,), (1.5, 1.5, 1.5)))
    assert step.kind == "reassign"
    assert step.configuration.servers[0] > 0.6
    assert step.configuration.cores == pytest.approx(5.0)


def test_step_without_gain_is_reverted_and_not_repeated():
    scaling = Scaling(budget=3.0, configuration=TeamConfiguration((0.9,), (1.0, 1.0)))
    kinds = [step.kind for step in scaling_steps_at_equal_usage(scaling, 0.85, link=0.2)]
    assert kinds == ["up", "back", "worker", "back", "server", "back", "settled"]
    assert scaling.configuration == TeamConfiguration((0.9,), (1.0, 1.0))


def test_server_and_worker_are_added_together_for_a_busy_link():
    def speed(now: TeamConfiguration) -> float:
        return 6.0 if len(now.servers) > 1 and len(now.workers) > 2 else 5.0

    scaling = Scaling(budget=3.0, configuration=TeamConfiguration((1.0,), (1.0, 1.0)))
    steps = scaling_steps_at_equal_usage(scaling, 0.85, speed=speed, link=0.75)
    kinds = [step.kind for step in steps]
    assert kinds[:5] == ["worker", "back", "server", "back", "nodes"]
    assert steps[4].reason == "85 % of 3 cores are used: 1 more parameter server and 1 more worker"
    assert kinds[5:] == ["worker", "back", "server", "back", "nodes", "back", "settled"]
    assert (len(scaling.configuration.servers), len(scaling.configuration.workers)) == (2, 3)


def test_budget_applies_immediately_and_a_larger_budget_restarts_the_search():
    scaling = Scaling(budget=12.0)
    list(simulate_steps(scaling, COMPUTES, seconds=1500))
    assert scaling.settled
    fewer = scaling.set_budget(6.0)
    assert fewer is not None
    assert (fewer.kind, fewer.configuration.cores) == ("budget", pytest.approx(6.0))
    assert fewer.reason == "the budget is now 6 cores"
    list(simulate_steps(scaling, COMPUTES, seconds=1500))
    assert scaling.configuration.cores <= 6.0
    more = scaling.set_budget(9.0)
    assert more is not None
    assert (more.kind, round(more.configuration.cores, 6)) == ("up", 9.0), "the job used its whole budget before"
    list(simulate_steps(scaling, COMPUTES, seconds=1500))
    assert scaling.configuration.cores > 8.0


def test_search_continues_during_small_changes_of_the_budget():
    scaling = Scaling(12.0, Team(start_share=1.0))
    rng, kinds = random.Random(0), []
    for second in range(HOUR_S):
        now = steady_state(KINDS["more cores than threads"], scaling.configuration, LINK_BYTES_S)
        step = scaling.decide(add_noise(now, rng, 0.01))
        kinds += [step.kind] if step else []
        if second % 3 == 0:
            budget = 12.0 * rng.uniform(0.96, 1.0)
            assert scaling.set_budget(budget) is None
            assert scaling.configuration.cores <= budget * (1 + 1e-9)
    assert scaling.configuration.cores == pytest.approx(scaling.budget)
    assert len(scaling.configuration.workers) >= 4, "the search has added workers"
    assert len(kinds) < 20
    assert kinds[-1] == "settled"


@pytest.fixture
def scaling_on_trial() -> Scaling:
    """Return a scaling that has just added workers and has not yet measured the effect."""
    scaling = Scaling(3.0, Team(stable_samples=2), configuration=TeamConfiguration((1.0,), (1.0, 1.0)))
    assert [step.kind for step in scaling_steps_at_equal_usage(scaling, 0.5, samples=2)] == ["worker"]
    return scaling


@pytest.mark.parametrize(("percent", "judged"), [(1, True), (4, False), (30, False)])
def test_step_is_not_judged_by_speed_under_a_different_budget(scaling_on_trial, percent, judged):
    """The budget shrinks in small steps or in one step."""
    for _ in range(4):
        step = scaling_on_trial.set_budget(scaling_on_trial.budget * (1 - percent / 100))
        assert (step is None) == (percent < 10)
    steps = scaling_steps_at_equal_usage(scaling_on_trial, 0.5, speed=lambda now: 4.0, samples=2)
    assert ("back" in [step.kind for step in steps]) == judged


def test_rejected_step_is_reverted_within_the_new_budget(scaling_on_trial):
    assert scaling_on_trial.set_budget(2.0) is not None
    back = scaling_on_trial.reject("worker-3 keeps failing")
    assert back is not None
    assert (len(back.configuration.workers), back.configuration.cores) == (2, pytest.approx(2.0))


def test_minimum_cores_of_servers_do_not_limit_workers():
    floors = Floors()
    needed, too_few = TeamConfiguration((1.0, 1.0), (1.0, 1.0)), TeamConfiguration((0.8, 1.2), (1.0, 1.0))
    assert _raise_floors(floors, needed, too_few) == Floors(server=1.0, worker=0.0)
    now = TeamConfiguration((1.0, 1.0, 1.0), (1.0, 1.0))
    used = {"ps-0": 0.2, "ps-1": 0.5, "ps-2": 1.0, "worker-0": 1.0, "worker-1": 1.0}
    assert reassign(now, used, 10.0, Team(), Floors(server=1.0)) == now, "an idle node at its floor gets no cores"


def test_server_with_less_than_one_core_keeps_enough_for_its_batches():
    def server_cores_after(now: TeamConfiguration, worker: float, speed: float) -> float:
        used = {"ps-0": 0.1, "worker-0": worker, "worker-1": worker}
        return reassign(now, used, speed, Team(), Floors()).servers[0]

    idle = TeamConfiguration((0.4,), (0.6, 0.6))
    assert server_cores_after(idle, 0.6, 60.0) == pytest.approx(0.125), (
        "a fraction of a core is a whole core for a part of the time"
    )
    assert server_cores_after(idle, 0.6, 4.0) > 0.2, "a batch of 25 ms does not fit into an eighth of 100 ms"
    assert server_cores_after(TeamConfiguration((0.1,), (0.7, 0.7)), 0.2, 60.0) > 0.3


@pytest.mark.parametrize(("servers", "workers", "budget"), [(1, 8, 0.4), (1, 4, 0.2), (4, 2, 0.15), (1, 2, 0.15)])
@pytest.mark.parametrize("used", [0.1, 0.9])
def test_team_with_too_few_cores_for_more_nodes_gets_none(servers, workers, budget, used):
    start = TeamConfiguration((2.0 / servers,) * servers, (2.0 / workers,) * workers)
    scaling = Scaling(4.0, configuration=start)
    scaling.set_budget(budget)
    steps = scaling_steps_at_equal_usage(scaling, used)
    assert [step.kind for step in steps] == ["settled"]
    assert len(scaling.configuration.nodes) == servers + workers


def test_team_without_a_bottleneck_is_not_scaled():
    scaling = Scaling(12.0, configuration=TeamConfiguration((0.1,), (5.95, 5.95)))
    healthy = Workload(compute_core_s=10.0, update_core_s=0.001, state_bytes=1e6)
    assert [step.kind for _, step in simulate_steps(scaling, healthy, noise=0.02)] == ["settled"]


def test_search_restarts_when_far_fewer_cores_are_in_use():
    scaling = Scaling(budget=24.0)
    list(simulate_steps(scaling, COMPUTES, seconds=2000))
    assert scaling.settled
    assert list(simulate_steps(scaling, KINDS["network"], seconds=600))


@given(
    compute=st.floats(0.1, 50),
    serial=st.floats(0, 0.5),
    worker_cores=st.floats(0.5, 16),
    update=st.floats(0.001, 1.0),
    server_cores=st.floats(0.5, 8),
    state=st.floats(1e4, 5e8),
    budget=st.floats(1.0, 64.0),
    seed=st.integers(0, 99),
)
@settings(max_examples=5)
def test_search_stays_within_the_budget_and_ends_for_any_workload(
    compute, serial, worker_cores, update, server_cores, state, budget, seed
):
    workload = Workload(compute, serial * compute, worker_cores, update, server_cores, state)
    scaling = Scaling(budget, Team(max_servers=4, max_workers=8))
    first = steady_state(workload, scaling.configuration, LINK_BYTES_S).speed
    last = 0
    for second, step in simulate_steps(scaling, workload, noise=0.005, seed=seed):
        last = second
        assert step.configuration.cores <= budget * (1 + 1e-6)
        assert min(step.configuration.nodes.values()) >= Team().min_cores * (1 - 1e-6)
        assert len(step.configuration.servers) <= 4
        assert len(step.configuration.workers) <= 8
    assert steady_state(workload, scaling.configuration, LINK_BYTES_S).speed >= 0.97 * first
    assert last < 0.75 * HOUR_S


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("start_share", 0.0, "fraction greater than 0"),
        ("stable_samples", 1, "at least 2"),
        ("network_busy", 1.5, "at most 1"),
        ("min_cores", -1.0, "greater than 0"),
        ("min_gain", 1.0, "below 1"),
    ],
)
def test_options_out_of_range_are_rejected(field, value, expected):
    with pytest.raises(InvalidInputError, match=f"{field}: got .*{expected}"):
        Team(**{field: value})


def test_budget_too_small_for_three_nodes_is_rejected():
    with pytest.raises(InvalidInputError, match=r"max_devices: got 0\.1, expected a number of cores of at least 0\.15"):
        Scaling(0.1)


def test_smallest_quantized_allocation_is_a_valid_budget():
    smallest = Limits(Team().initial_cores, 2.0).quantize(0.0)
    assert Scaling(smallest).configuration.cores == pytest.approx(smallest)
