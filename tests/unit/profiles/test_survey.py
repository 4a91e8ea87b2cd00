"""A survey selects the points to measure. In these tests, formulas replace the machines."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from paceline.errors import InvalidInputError
from paceline.fleet import BackgroundApp, Machine
from paceline.profiles import FUNCTIONS, DeviceProfile, Origin, execution, learn
from paceline.profiles.learn import MIN_POINTS, errors_pct
from paceline.profiles.neighbours import Load
from paceline.profiles.survey import BATCH, CPU, MEMORY, SERVER, WORKERS, Survey, default_axes

ORIGIN = Origin("train-1", cores=4, memory_gib=4, gpus=0, measured_at="2030-01-01T00:00:00+00:00")
SPEED = {"tx2": 0.01, "nano": 0.02}
APP = BackgroundApp(name="sift", latency_ms=200)
MACHINES = [
    Machine(name=name, kind=kind, cores=1, memory_gib=1, background=(APP,))
    for name, kind in (("tx2", "tx2"), ("nano-1", "nano"), ("nano-2", "nano"))
]


class FormulaBench:
    """A fake bench that computes the measurements by formulas."""

    def __init__(self, noise=0.01):
        self._rnd = np.random.default_rng(7)
        self._noise = noise
        self.kinds = {machine.name: machine.kind for machine in MACHINES}
        self.jobs = []
        self.measurements = []

    def train(self, batch):
        self.jobs.append(dict(batch))

    def measure(self, loads, *, active, server):
        self.measurements.append((loads, tuple(active), server))
        batch, workers = self.jobs[-1], len(active)
        rows = []
        for name in active:
            load, size, speed = loads[name], batch[name], SPEED[self.kinds[name]]
            rough = lambda: float(np.exp(self._rnd.normal(0, self._noise)))  # noqa: E731
            point = {
                "machine": name, "kind": self.kinds[name], CPU: load.cpu, MEMORY: load.memory, SERVER: server.cpu,
                BATCH: float(size), WORKERS: float(workers), "pushes_per_s": sum(1 / batch[one] for one in active),
            }  # fmt: skip
            rows.append(
                {
                    **point,
                    "server_cpu": server.cpu,
                    "cpu": min(0.2 + 0.8 * load.cpu, 1.0) * rough(),
                    "gpu": 0.0,
                    "memory": load.memory,
                    "new_cpu": 1.0,
                    "new_gpu": 0.0,
                    "new_memory": load.memory + 0.2 + 0.002 * size,
                    "compute_s": speed * (1 + 0.5 / size) * (1 + load.cpu) * rough(),
                    "update_s": 0.01 * (1 + 0.3 * (workers - 1)) * (1 + server.cpu) * rough(),
                    "execution_s.sift": 0.08 * (1 + 0.6 * load.cpu) * rough(),
                }
            )
        return rows


def run_survey(points, held_out=0, seed=0):
    bench = FormulaBench()
    run = Survey(bench, MACHINES, default_axes(workers=3), seed=seed)
    return bench, run.run(points, held_out)


@pytest.fixture(scope="module")
def survey_result():
    return run_survey(points=60, held_out=20)


def test_survey_starts_a_job_for_each_batch_size_and_round(survey_result):
    bench, measured = survey_result
    assert len(bench.measurements) == 80
    assert len(bench.jobs) == 8
    sizes = Counter((name, size) for job in bench.jobs for name, size in job.items())
    assert set(sizes.values()) == {2}  # each machine trains equally often with each batch size
    rows = sum(len(active) for _, active, _ in bench.measurements)
    assert measured.held_out.sum() == rows - (~measured.held_out).sum()


def test_rounds_with_a_single_batch_size_share_one_job():
    bench = FormulaBench()
    Survey(bench, MACHINES, default_axes(3, batch_sizes=[16]), seed=0).run(24)
    assert bench.jobs == [dict.fromkeys(bench.kinds, 16)]
    assert len(bench.measurements) == 24


@pytest.mark.parametrize("machines", [1, 2, 3])
def test_smallest_survey_has_enough_rows_of_each_machine(machines):
    for seed in range(3):
        survey = Survey(FormulaBench(), MACHINES[:machines], default_axes(machines, batch_sizes=[16]), seed=seed)
        measured = survey.run(8 if machines == 1 else 16, held_out=4)
        rows = Counter(measured[~measured.held_out].machine)
        assert min(rows.values()) >= MIN_POINTS
        assert max(rows.values()) - min(rows.values()) <= 1


def test_memory_loads_which_take_seconds_to_change_rarely_change():
    bench = FormulaBench()
    Survey(bench, MACHINES, default_axes(3, batch_sizes=[16]), seed=0).run(24)
    for machine in MACHINES:
        memory = [loads[machine.name].memory for loads, _, _ in bench.measurements]
        assert len(set(memory)) > 1
        assert sum(before != after for before, after in pairwise(memory)) <= 9, memory


def test_survey_measures_grid_points_and_each_machine_leads_in_turn(survey_result):
    bench, _ = survey_result
    values = default_axes(workers=3).values
    for loads, active, server in bench.measurements:
        assert set(active) <= set(loads) == {machine.name for machine in MACHINES}
        assert len(set(active)) == len(active)
        assert server.cpu in values[SERVER]
        assert all(load.cpu in values[CPU] and load.memory in values[MEMORY] for load in loads.values())
    assert {active[0] for _, active, _ in bench.measurements} == {machine.name for machine in MACHINES}
    assert {len(active) for _, active, _ in bench.measurements} == {1, 2, 3}


def test_part_of_the_grid_suffices_to_learn_the_times(survey_result):
    _, measured = survey_result
    of_kind = measured[measured.kind == "nano"]
    learned_from, tested = of_kind[~of_kind.held_out], of_kind[of_kind.held_out]
    assert len(learned_from) < len(default_axes(workers=3).grid) / 2
    for function in [*FUNCTIONS[:2], execution("sift")]:  # the survey chooses points for these functions
        predicted = learn(function, learned_from)(tested[list(function.features)].to_numpy(dtype=float))
        assert np.mean(errors_pct(function, predicted, tested[function.target].to_numpy())) < 3.4


def test_survey_is_reproducible_with_a_seed():
    assert run_survey(points=24, seed=3)[0].measurements == run_survey(points=24, seed=3)[0].measurements


def test_learning_ignores_rows_without_an_application_or_execution(monkeypatch):
    bench = FormulaBench()

    def measure(loads, *, active, server):
        rows = FormulaBench.measure(bench, loads, active=active, server=server)
        for row in rows:
            if row["machine"] == "nano-2":
                del row["execution_s.sift"]
        return rows

    bench.measure = measure
    monkeypatch.setattr("paceline.profiles.survey.choose_more", lambda *chosen, **options: [])  # random points
    machines = [*MACHINES[:2], MACHINES[2].model_copy(update={"background": ()})]
    measured = Survey(bench, machines, default_axes(workers=3)).run(points=60)
    ran = measured.index[(measured.machine == "nano-1") & measured["execution_s.sift"].notna()]
    measured.loc[ran[:3], "execution_s.sift"] = np.nan
    monkeypatch.setattr(
        "paceline.profiles._device.FUNCTIONS", FUNCTIONS[:1]
    )  # fitting one function suffices for this test
    profile = DeviceProfile.fit("nano", measured[measured.kind == "nano"], ORIGIN, apps=["sift"])
    assert profile[execution("sift")].points == len(ran) - 3 < profile[FUNCTIONS[0]].points
    assert profile[execution("sift")].mape_pct < 5


def test_survey_accepts_more_batch_sizes_than_points():
    bench = FormulaBench()
    survey = Survey(bench, MACHINES[:1], default_axes(workers=1, batch_sizes=range(1, 17)))
    assert len(survey.run(points=8)) == 8


def test_survey_accepts_more_batch_sizes_than_combinations_of_loads():
    survey = Survey(FormulaBench(), MACHINES[:1], default_axes(workers=1, batch_sizes=range(1, 33)))
    assert set(survey.run(points=32).batch_size) == set(range(1, 33))


def test_too_many_workers_or_too_few_points_are_rejected_before_measuring():
    bench = FormulaBench()
    with pytest.raises(InvalidInputError, match=r"axes.workers: got 4, expected at most 3"):
        Survey(bench, MACHINES, default_axes(workers=4))
    with pytest.raises(InvalidInputError, match=r"points: got 15, expected at least 16 \(machines to measure: 3\)"):
        Survey(bench, MACHINES, default_axes(workers=3)).run(points=15)
    assert bench.jobs == []


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_load_outside_0_to_1_is_rejected(share):
    with pytest.raises(InvalidInputError, match=r"load.cpu: got"):
        Load(cpu=share)
