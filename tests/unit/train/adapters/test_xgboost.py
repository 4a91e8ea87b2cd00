"""A killed and restarted XGBoost training ends with the same model as an uninterrupted one.

``with_xgboost.py`` is the training; the processes and signals are real.
"""

import json

import numpy as np
import pytest
import xgboost

from paceline.testing.adapter_contract import AdapterContract
from paceline.train import _session, checkpoint
from paceline.train.adapters.xgboost import PacelineCallback

from .conftest import ROUNDS, expected_codes, random_kills

DATA = np.arange(40.0).reshape(-1, 1), np.arange(40.0)
FEW = [("SIGKILL", 3), ("SIGTERM", 7)]
# With ``every_s=3600``, only SIGTERM saves.
OPTIONS = {
    "native": {},
    "rare": {"every_s": 3600},
    "patience": {"patience": 2},
    "estimator": {"estimator": True, "patience": 2},
    "continued": {"continued": True},
    "stopped": {"stop": 12},
    "dart": {"params": {"booster": "dart", "rate_drop": 0.2, "seed_per_iteration": 1}},
    "sampled": {"params": {"subsample": 0.5, "colsample_bynode": 0.5}},
}
KILLS = {"native": random_kills(1), "stopped": [*FEW, ("SIGKILL", 12), ("SIGTERM", 12)]}
KILLS["rare"] = [("SIGTERM", 7), ("SIGKILL", 11), ("SIGTERM", ROUNDS), ("SIGKILL", 15)]
SCENARIOS = OPTIONS | {f"{name}-killed": {**one, "ends": KILLS.get(name, FEW)} for name, one in OPTIONS.items()}
EXACT = [name for name in OPTIONS if name != "sampled"]


@pytest.fixture(scope="module")
def results(train_all):
    return train_all("xgboost", SCENARIOS)


def model(trained):
    return json.loads(trained.result)


@pytest.mark.parametrize("name", SCENARIOS)
def test_training_ends_with_the_expected_exit_codes(results, name):
    assert results[name].codes == expected_codes(SCENARIOS[name]), results[name].logs


@pytest.mark.parametrize("name", EXACT)
def test_killed_training_ends_with_the_same_model(results, name):
    """Predictions, number of rounds, attributes of early stopping and recorded evaluations are the same."""
    assert results[f"{name}-killed"].result == results[name].result is not None


def test_different_options_end_with_different_models(results):
    """If all trainings ended with the same model, a comparison of models would prove nothing."""
    predictions = {name: str(model(results[name])[0]) for name in OPTIONS if name not in ("rare", "estimator")}
    assert len(set(predictions.values())) == len(predictions)
    assert model(results["patience"])[1] < ROUNDS
    assert model(results["stopped"])[1] == 12


def test_killed_training_with_sampling_trains_all_rounds(results):
    assert model(results["sampled-killed"])[1] == ROUNDS


def test_progress_counts_rounds_and_continues_after_a_restart(results):
    before, killed, resumed = results["rare-killed"].progress[:3]
    assert [p.event for p in before][:1] == ["start"]
    assert {p.total for p in before} == {ROUNDS}
    assert [p.done for p in killed if p.event == "start"] == [7]
    assert [p.done for p in resumed if p.event == "start"] == [7]
    last = results["rare-killed"].progress[-1][-1]
    assert (last.event, last.done, last.total) == ("finish", ROUNDS, ROUNDS)
    assert set(last.metrics) == {"train_rmse", "valid_rmse"}


def test_progress_ends_at_100_percent_when_early_stopping_ends_training(results):
    last = results["patience-killed"].progress[-1][-1]
    assert (last.event, last.done) == ("finish", model(results["patience"])[1])
    assert last.percent == 100


def train(callback, rounds=5, **options):
    return xgboost.train({"nthread": 1}, xgboost.DMatrix(*DATA), rounds, callbacks=[callback], **options)


def test_second_training_in_a_process_has_its_own_checkpoint(tmp_path, restart_process):
    def script():
        restart_process()
        return [train(PacelineCallback(path=tmp_path), rounds).num_boosted_rounds() for rounds in (3, 6)]

    assert script() == [3, 6]
    assert script() == [3, 6]


@pytest.mark.parametrize("rounds", [3, 7])
def test_changed_number_of_rounds_is_named(tmp_path, restart_process, rounds):
    train(PacelineCallback(path=tmp_path))
    restart_process()
    with pytest.raises(ValueError, match=f"num_boost_round: got {rounds}, expected 5 as in the checkpoint"):
        train(PacelineCallback(path=tmp_path), rounds)


def test_early_stopping_with_save_best_returns_the_best_rounds(tmp_path, restart_process):
    def script():
        restart_process()
        data = xgboost.DMatrix(*DATA)
        before = xgboost.callback.EarlyStopping(rounds=2, save_best=True, min_delta=5.0)
        callbacks = [before, PacelineCallback(path=tmp_path)]
        return xgboost.train({"nthread": 1}, data, 9, evals=[(data, "train")], callbacks=callbacks)

    first, again = script(), script()
    assert again.num_boosted_rounds() == first.num_boosted_rounds() == first.best_iteration + 1 < 9
    assert again.save_raw() == first.save_raw()


def test_training_without_a_folder_saves_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert train(PacelineCallback()).num_boosted_rounds() == 5
    assert list(tmp_path.iterdir()) == []
    assert _session.current.loop is None


@pytest.mark.parametrize("again", [True, False])
def test_training_after_an_error_shows_its_progress(again):
    def fail(predictions, data):
        raise ArithmeticError

    callback = PacelineCallback()
    with pytest.raises(ArithmeticError):
        train(callback, obj=fail)
    assert train(callback if again else PacelineCallback()).num_boosted_rounds() == 5
    assert _session.current.last.event == "finish"


def test_threads_follow_the_share_of_the_processor(tmp_path, monkeypatch, restart_process):
    control = tmp_path / "control.json"
    control.write_text(json.dumps({"devices": 1}))
    monkeypatch.setenv("PACELINE_CONTROL", str(control))
    seen = []

    class Threads(xgboost.callback.TrainingCallback):
        def before_iteration(self, model, epoch, evals_log):
            seen.append(json.loads(model.save_config())["learner"]["generic_param"]["nthread"])
            return False

    xgboost.train({"nthread": 2}, xgboost.DMatrix(*DATA), 2, callbacks=[PacelineCallback(), Threads()])
    xgboost.train({"nthread": 1}, xgboost.DMatrix(*DATA), 2, callbacks=[PacelineCallback(threads=2), Threads()])
    assert seen == ["1", "1", "2", "2"]


def test_cross_validation_is_rejected():
    with pytest.raises(RuntimeError, match=r"outside xgboost\.training\.train"):
        xgboost.cv({}, xgboost.DMatrix(*DATA), 2, callbacks=[PacelineCallback()])


@pytest.mark.parametrize("params", [{"process_type": "update"}, {"lambdarank_unbiased": True}])
def test_training_that_cannot_be_resumed_is_rejected(params):
    with pytest.raises(ValueError, match=f"{next(iter(params))}: got .*, expected another value"):
        xgboost.train(params, xgboost.DMatrix(*DATA), 2, callbacks=[PacelineCallback()])


def test_worker_of_a_parameter_server_is_rejected(monkeypatch):
    monkeypatch.setenv("PACELINE_SERVER", "127.0.0.1:1")
    with pytest.raises(RuntimeError, match="a parameter server cannot train"):
        train(PacelineCallback())


def test_checkpoint_of_other_objects_is_rejected(tmp_path):
    class Part:
        def state_dict(self):
            return {}

        def load_state_dict(self, state):
            pass

    checkpoint(part=Part(), path=tmp_path)
    with pytest.raises(RuntimeError, match="omit the call"):
        train(PacelineCallback())


class TestContract(AdapterContract):
    steps = ROUNDS

    def train(self, after_step, *, other=False):
        from .with_xgboost import train

        return train(after_step, params={"max_depth": 2} if other else {})
