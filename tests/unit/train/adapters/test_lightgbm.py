"""A killed and restarted LightGBM training ends with the same model as an uninterrupted one.

``with_lightgbm.py`` is the training; the processes and signals are real.
"""

import functools
import itertools
import json

import lightgbm
import numpy as np
import pytest

from paceline.testing.adapter_contract import AdapterContract
from paceline.train import _session
from paceline.train.adapters.lightgbm import PacelineCallback

from .conftest import ROUNDS, expected_codes, random_kills

RAW_DATA = lightgbm.Dataset.__init__
DATA = np.arange(90.0).reshape(-1, 1), np.arange(90.0)
FEW = [("SIGKILL", 3), ("SIGTERM", 7)]
# With ``every_s=3600``, only SIGTERM saves.
OPTIONS = {
    "native": {},
    "rare": {"every_s": 3600},
    "patience": {"patience": 2},
    "estimator": {"estimator": True, "patience": 2},
    "continued": {"continued": True},
    "stopped": {"stop": 12},
    "goss": {"params": {"data_sample_strategy": "goss", "top_rate": 0.5, "other_rate": 0.4}},
    "sampled": {"params": {"bagging_fraction": 0.5, "bagging_freq": 1, "feature_fraction": 0.5}},
}
KILLS = {"native": random_kills(2), "stopped": [*FEW, ("SIGKILL", 12), ("SIGTERM", 12)]}
KILLS["rare"] = [("SIGTERM", 7), ("SIGKILL", 11), ("SIGTERM", ROUNDS), ("SIGKILL", 15)]
SCENARIOS = OPTIONS | {f"{name}-killed": {**one, "ends": KILLS.get(name, FEW)} for name, one in OPTIONS.items()}
EXACT = [name for name in OPTIONS if name not in ("sampled", "goss")]


@pytest.fixture(scope="module")
def results(train_all):
    return train_all("lightgbm", SCENARIOS)


def model(trained):
    return json.loads(trained.result)


@pytest.mark.parametrize("name", SCENARIOS)
def test_training_ends_with_the_expected_exit_codes(results, name):
    assert results[name].codes == expected_codes(SCENARIOS[name]), results[name].logs


@pytest.mark.parametrize("name", EXACT)
def test_killed_training_ends_with_the_same_model(results, name):
    """Predictions, number of trees, best iteration and score, and recorded evaluations are the same."""
    assert results[f"{name}-killed"].result == results[name].result is not None


def test_different_options_end_with_different_models(results):
    """If all trainings ended with the same model, a comparison of models would prove nothing."""
    predictions = {name: str(model(results[name])[0]) for name in OPTIONS if name not in ("rare", "estimator")}
    assert len(set(predictions.values())) == len(predictions)
    assert model(results["patience"])[1] < ROUNDS
    assert model(results["stopped"])[1] == 12


@pytest.mark.parametrize("name", ["sampled-killed", "goss-killed"])
def test_killed_training_with_sampling_trains_all_rounds(results, name):
    assert model(results[name])[1] == ROUNDS


def test_progress_counts_rounds_and_continues_after_a_restart(results):
    before, killed, resumed = results["rare-killed"].progress[:3]
    assert [p.event for p in before][:1] == ["start"]
    assert {p.total for p in before} == {ROUNDS}
    assert [p.done for p in killed if p.event == "start"] == [7]
    assert [p.done for p in resumed if p.event == "start"] == [7]
    last = results["rare-killed"].progress[-1][-1]
    assert (last.event, last.done, last.total) == ("finish", ROUNDS, ROUNDS)
    assert set(last.metrics) == {"training_l2", "valid_1_l2"}


def test_progress_ends_when_early_stopping_ends_training(results):
    last = results["patience-killed"].progress[-1][-1]
    patience = SCENARIOS["patience"]["patience"]
    assert (last.event, last.done) == ("finish", model(results["patience"])[1] + patience)  # the trees after the best
    assert last.percent == 100


def train(callback, rounds=5, data=None, **options):
    options = {"params": {"verbose": -1, "num_threads": 1}} | options
    return lightgbm.train(
        train_set=data or lightgbm.Dataset(*DATA), num_boost_round=rounds, callbacks=[callback], **options
    )


def test_second_training_in_a_process_has_its_own_checkpoint(tmp_path, restart_process):
    def script():
        restart_process()
        return [train(PacelineCallback(path=tmp_path), rounds).num_trees() for rounds in (3, 6)]

    assert script() == [3, 6]
    assert script() == [3, 6]


class Killed(BaseException):
    """Ends training at once, as a signal ends a process; then the test makes new data sets, as a new process does."""


def search(folder, killed=0, subset=False):
    """Train three trials and one that continues the last of them, all with the same data sets; return the models.

    Raise ``Killed`` after the script's round ``killed``.
    """
    rows = np.random.default_rng(3).normal(size=(300, 3))
    target = 5 + rows[:, 0] * rows[:, 1]  # a mean other than zero, from which LightGBM starts
    train_set = lightgbm.Dataset(rows, target)
    if subset:
        train_set = train_set.subset(range(50, 300))
    valid = lightgbm.Dataset(rows[:50], target[:50], reference=train_set)
    rounds = itertools.count(1)

    def kill(env):
        if next(rounds) == killed:
            raise Killed

    models = []
    for leaf, continued in ((5, False), (90, False), (20, False), (20, True)):
        params = {"min_child_samples": leaf, "verbose": -1, "num_threads": 1, "deterministic": True}
        before = models[-1] if continued else None
        callbacks = [PacelineCallback(path=folder, every_s=0), kill] if folder else []
        models.append(lightgbm.train(params, train_set, 4, [valid], init_model=before, callbacks=callbacks))
    return [(model.num_trees(), model.predict(rows).tobytes()) for model in models]


@pytest.mark.parametrize("subset", [False, True])
def test_trainings_that_share_a_data_set_resume_exactly(tmp_path, restart_process, monkeypatch, subset):
    monkeypatch.setattr(lightgbm.Dataset, "__init__", functools.partialmethod(RAW_DATA, free_raw_data=False))
    undisturbed = search(None, subset=subset)  # only here, LightGBM needs the raw data, for its own init_model
    monkeypatch.undo()
    assert len(set(undisturbed)) == 4
    for killed in (2, 3, 6, 9, 14, 15):
        restart_process()
        with pytest.raises(Killed):
            search(tmp_path, killed, subset)
    restart_process()
    assert search(tmp_path, subset=subset) == undisturbed
    restart_process()
    assert search(tmp_path, subset=subset) == undisturbed, "all trainings had ended"


def test_data_set_of_a_killed_training_is_as_before_in_the_next_one(tmp_path, restart_process):
    data = lightgbm.Dataset(*DATA, free_raw_data=False)
    undisturbed = train(PacelineCallback(), data=data).model_to_string()
    restart_process()
    train(PacelineCallback(path=tmp_path), 3)
    restart_process()

    def fail(env):
        raise ArithmeticError

    with pytest.raises(ArithmeticError):
        lightgbm.train({"verbose": -1, "num_threads": 1}, data, 3, callbacks=[PacelineCallback(path=tmp_path), fail])
    assert train(PacelineCallback(), data=data).model_to_string() == undisturbed


def test_data_set_without_raw_data_is_rejected_where_a_restart_would_need_it(tmp_path):
    data = lightgbm.Dataset(*DATA).construct()
    with pytest.raises(ValueError, match="free_raw_data: got True, expected False: a restart needs"):
        train(PacelineCallback(path=tmp_path), data=data)
    assert train(PacelineCallback(), data=data).num_trees() == 5


def test_values_of_numpy_from_a_metric_continue(tmp_path, restart_process):
    def script(killed=None, **options):
        history, data = {}, lightgbm.Dataset(*DATA)
        valid = lightgbm.Dataset(*DATA, reference=data)

        def metric(predictions, data):
            return "closeness", np.float32(1 / (1 + np.abs(predictions - data.get_label()).mean())), np.bool_(True)

        def kill(env):
            if env.iteration == killed:
                raise Killed

        others = [lightgbm.early_stopping(3, verbose=False), lightgbm.record_evaluation(history), kill]
        callbacks = [PacelineCallback(**options), *others]
        lightgbm.train({"verbose": -1, "metric": "None"}, data, 5, [valid], feval=metric, callbacks=callbacks)
        return history["valid_0"]["closeness"]

    undisturbed = script()
    restart_process()
    with pytest.raises(Killed):
        script(killed=3, path=tmp_path, every_s=0)
    restart_process()
    assert script(path=tmp_path, every_s=0) == undisturbed == sorted(undisturbed)


@pytest.mark.parametrize("rounds", [3, 7])
def test_changed_number_of_rounds_is_named(tmp_path, restart_process, rounds):
    train(PacelineCallback(path=tmp_path))
    restart_process()
    with pytest.raises(ValueError, match=f"num_boost_round: got {rounds}, expected 5 as in the checkpoint"):
        train(PacelineCallback(path=tmp_path), rounds)


def test_shorter_early_stopping_after_a_restart_is_rejected(tmp_path, restart_process):
    def script(patience):
        rows = np.random.default_rng(3).normal(size=(200, 3))
        data, valid = lightgbm.Dataset(rows[:100], rows[:100, 0]), lightgbm.Dataset(rows[100:], rows[100:, 1])
        stop = lightgbm.early_stopping(patience, verbose=False)
        params = {"verbose": -1, "num_threads": 1}
        lightgbm.train(params, data, 20, [valid], callbacks=[PacelineCallback(path=tmp_path), stop])

    script(10)
    restart_process()
    with pytest.raises(ValueError, match="checkpoint: training ended before round"):
        script(2)


@pytest.mark.parametrize("again", [True, False])
def test_training_after_an_error_shows_its_progress(again):
    def fail(predictions, data):
        raise ArithmeticError

    callback = PacelineCallback()
    with pytest.raises(ArithmeticError):
        train(callback, params={"objective": fail})
    assert train(callback if again else PacelineCallback()).num_trees() == 5
    assert _session.current.last.event == "finish"


def test_threads_follow_the_share_of_the_processor(tmp_path, monkeypatch):
    control = tmp_path / "control.json"
    control.write_text(json.dumps({"devices": 1}))
    monkeypatch.setenv("PACELINE_CONTROL", str(control))
    seen = []

    def note_threads(env):
        seen.append(env.model.params["num_threads"])

    for callback, before in ((PacelineCallback(), 2), (PacelineCallback(threads=2), 1)):
        params = {"verbose": -1, "num_threads": before}
        lightgbm.train(params, lightgbm.Dataset(*DATA), 2, callbacks=[callback, note_threads])
    assert seen == [1, 1, 2, 2]


def test_cross_validation_is_rejected():
    with pytest.raises(RuntimeError, match=r"outside lightgbm\.engine\.train"):
        lightgbm.cv({"verbose": -1}, lightgbm.Dataset(*DATA), 2, stratified=False, callbacks=[PacelineCallback()])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"params": {"boosting": "dart"}}, "boosting: got 'dart', expected gbdt"),
        (
            {"params": {"cegb_penalty_feature_coupled": [1.0]}},
            "cegb_penalty_feature_coupled: got .*, expected none",
        ),
        ({"params": {"num_machines": 2}}, "num_machines: got 'several machines', expected 1"),
        ({"data": lightgbm.Dataset(*DATA, init_score=DATA[1])}, "init_score: got 'initial scores', expected none"),
        (
            {
                "params": {"objective": "lambdarank"},
                "data": lightgbm.Dataset(DATA[0], DATA[1] > 40, group=[30] * 3, position=np.tile(np.arange(30), 3)),
            },
            "position: got 'the positions of a ranking', expected none",
        ),
        ({"keep_training_booster": True}, "keep_training_booster: got True, expected False"),
    ],
)
def test_training_that_cannot_be_resumed_is_rejected(options, message):
    with pytest.raises(ValueError, match=message):
        train(PacelineCallback(), **options)


def test_worker_of_a_parameter_server_is_rejected(monkeypatch):
    monkeypatch.setenv("PACELINE_SERVER", "127.0.0.1:1")
    with pytest.raises(RuntimeError, match="a parameter server cannot train"):
        train(PacelineCallback())


class TestContract(AdapterContract):
    steps = ROUNDS

    def train(self, after_step, *, other=False):
        from .with_lightgbm import train

        return train(after_step, params={"num_leaves": 3} if other else {})
