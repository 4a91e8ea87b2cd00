"""A killed and restarted LightGBM training ends with the same model as an uninterrupted one. ``killed.py`` trains."""

import json

import lightgbm
import numpy as np
import pytest

from paceline.train import _session
from paceline.train.adapters.lightgbm import PacelineCallback

from .conftest import expected_codes, random_kills
from .killed import ROUNDS

DATA = np.arange(90.0).reshape(-1, 1), np.arange(90.0)
FEW = [("SIGKILL", 3), ("SIGTERM", 7)]
# With ``every_s=3600``, only SIGTERM saves.
OPTIONS = {
    "native": {},
    "rare": {"every_s": 3600},
    "patience": {"patience": 2},
    "estimator": {"estimator": True, "patience": 2},
    "continued": {"continued": True},
    "stopped": {"stop_after": 12},
    "goss": {"params": {"data_sample_strategy": "goss", "top_rate": 0.5, "other_rate": 0.4}},
    "sampled": {"params": {"bagging_fraction": 0.5, "bagging_freq": 1, "feature_fraction": 0.5}},
}
KILLS = {"native": random_kills(2), "stopped": [*FEW, ("SIGKILL", 12), ("SIGTERM", 12)]}
KILLS["rare"] = [("SIGTERM", 7), ("SIGKILL", 11), ("SIGTERM", ROUNDS), ("SIGKILL", 15)]
SCENARIOS = OPTIONS | {f"{name}-killed": {**one, "kills": KILLS.get(name, FEW)} for name, one in OPTIONS.items()}
EXACT = [name for name in OPTIONS if name not in ("sampled", "goss")]


@pytest.fixture(scope="module")
def results(train_killed):
    return train_killed("lightgbm", SCENARIOS)


@pytest.mark.parametrize("name", SCENARIOS)
def test_training_ends_with_the_expected_exit_codes(results, name):
    assert results[name].codes == expected_codes(SCENARIOS[name]), results[name].logs


@pytest.mark.parametrize("name", EXACT)
def test_killed_training_ends_with_the_same_model(results, name):
    """Predictions, number of trees, best iteration and score, and recorded evaluations are the same."""
    assert results[f"{name}-killed"].model == results[name].model is not None


def test_different_options_end_with_different_models(results):
    """If all trainings ended with the same model, a comparison of models would prove nothing."""
    predictions = {name: results[name].model[0] for name in OPTIONS if name not in ("rare", "estimator")}
    assert len(set(predictions.values())) == len(predictions)
    assert results["patience"].model[1] < ROUNDS
    assert results["stopped"].model[1] == 12


@pytest.mark.parametrize("name", ["sampled-killed", "goss-killed"])
def test_killed_training_with_sampling_trains_all_rounds(results, name):
    assert results[name].model[1] == ROUNDS


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
    assert (last.event, last.done) == ("finish", results["patience"].model[1] + patience)  # the trees after the best
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


def test_data_set_that_is_constructed_and_freed_before_training_cannot_be_resumed(tmp_path, restart_process):
    train(PacelineCallback(path=tmp_path))
    restart_process()
    with pytest.raises(lightgbm.basic.LightGBMError, match="set free_raw_data=False"):
        train(PacelineCallback(path=tmp_path), data=lightgbm.Dataset(*DATA).construct())


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
