"""The simulations of ``benchmarks.elastic``: Paceline and Optimus start alike, as in Nearchus, section V."""

import itertools

import pytest
from benchmarks.elastic.curves import Curve
from benchmarks.elastic.multi_job import OptimusPolicy, simulate_growing, simulate_known_speeds, speeds_of_optimus
from benchmarks.elastic.shared_jobs import JobMix, JobRequest, Outcome, draw_arrivals, most_queued, summarize
from benchmarks.elastic.simulated import CLUSTERS, Cluster, best_fixed, make_optimus, simulate_alone, simulate_decider

from paceline.elastic import Scaling, TeamConfiguration

CURVES = {"small": Curve(3_000_000, 2.0, 1.05, 0.004), "large": Curve(23_000_000, 6.0, 3.2, 0.03)}
FIRST = TeamConfiguration((5.0,), (5.0, 5.0))


def simulate_optimus(jobs, cluster):
    return simulate_known_speeds(OptimusPolicy(), jobs, speeds_of_optimus, CURVES, cluster, 60.0)


@pytest.mark.parametrize("cluster", CLUSTERS, ids=lambda cluster: cluster.name)
def test_job_alone_starts_on_the_same_nodes_as_with_optimus(cluster):
    scaling = Scaling(cluster.cores, cluster.options(cluster.cores))
    assert scaling.configuration == FIRST
    row = simulate_alone("small", CURVES["small"], cluster, 60.0, seed=0)
    assert row["started"] == row["started_optimus"] == str(FIRST)


@pytest.mark.parametrize("cluster", CLUSTERS, ids=lambda cluster: cluster.name)
def test_jobs_of_all_budgets_start_on_fifteen_cores(cluster):
    jobs = list(draw_arrivals(CURVES, 1, JobMix()))[:8]
    assert {job.cores for job in jobs} == {30, 50, 80}
    assert simulate_growing(jobs, CURVES, cluster).first_cores == pytest.approx(15)
    assert simulate_optimus(jobs, cluster).first_cores == 15


def test_job_waits_until_fifteen_cores_are_free():
    cluster = Cluster("small", 29, 1_000.0, 16.0)
    work = 600 * best_fixed(CURVES["small"].workload(16.0), cluster, 15.0)[1]  # ten minutes on the first cores
    jobs = [JobRequest(f"job-{number}", "small", 10.0 * number, work, 20) for number in range(2)]
    for outcome in (simulate_growing(jobs, CURVES, cluster), simulate_optimus(jobs, cluster)):
        assert outcome.queued_s >= 100
        assert (outcome.most_queued, outcome.first_cores) == (1, pytest.approx(15))


def test_no_step_is_taken_before_five_minutes_of_stable_samples():
    (cluster, _), workload = CLUSTERS, CURVES["small"].workload(16.0)
    path = list(simulate_decider(Scaling(100, cluster.options(100)), workload, cluster))
    changes = [place for place in range(1, len(path)) if path[place][0] != path[place - 1][0]]
    assert changes[0] == 30
    assert min(later - earlier for earlier, later in itertools.pairwise(changes)) >= 30


def test_optimus_adds_one_node_in_each_step_after_its_profiles():
    optimus = make_optimus(40, 2)
    workload = CURVES["small"].workload(16.0)
    path = [one for one, _ in simulate_decider(optimus, workload, CLUSTERS[1]) if not optimus.is_profiling]
    cores = [one.cores for one in path]
    assert cores[0] == 15
    assert {after - before for before, after in itertools.pairwise(cores)} <= {0, 5}
    assert cores[-1] == 40


def test_longer_jobs_have_more_work_at_the_same_load():
    short, long = (list(draw_arrivals(CURVES, 2, mix)) for mix in (JobMix(), JobMix(length=4.0, interval_h=4.0)))
    assert [4 * job.arrives_s for job in short] == pytest.approx([job.arrives_s for job in long])
    assert [4 * job.work for job in short] == pytest.approx([job.work for job in long])
    assert [job.cores for job in short] == [job.cores for job in long]


def test_waiting_jobs_are_counted():
    assert most_queued([]) == 0
    assert most_queued([(0.0, 5.0), (1.0, 5.0), (5.0, 7.0), (6.0, 6.0)]) == 2


def test_summary_has_means_spread_and_differences_on_the_same_traces():
    def outcome(done_s, queued_s):
        return Outcome(done_s, queued_s, most_queued=1, first_cores=15.0, restarts=0.0, in_use=0.5)

    rows = summarize(
        {"a": [outcome(50.0, 10.0), outcome(150.0, 20.0)], "b": [outcome(100.0, 0.0), outcome(200.0, 0.0)]}
    )
    own, other = rows
    assert (own["done_s"], own["run_s"], own["traces"]) == (100.0, 85.0, 2)
    assert own["done_s_sd"] == pytest.approx(70.7, abs=0.1)
    assert own["done_s_vs_b"] == pytest.approx(-1 / 3)
    assert own["done_s_vs_b_sd"] == pytest.approx(0.177, abs=0.001)
    assert own["queued_s_vs_b"] is None
    assert other["queued_s_vs_a"] == -1.0
