"""A killed and restarted CatBoost training ends with the same model as an uninterrupted one.

``with_catboost.py`` is the training; the processes and signals are real.
"""

import json

import catboost
import numpy as np
import pytest

from paceline.testing.adapter_contract import AdapterContract
from paceline.train import _session
from paceline.train.adapters.catboost import PacelineCallback, _connect
from paceline.train.pacing import threads

from .conftest import ROUNDS, expected_codes, random_kills

DATA = np.arange(40.0).reshape(-1, 1), np.arange(40.0)
FEW = [("SIGKILL", 3), ("SIGTERM", 7)]
# With ``every_s=3600``, only SIGTERM saves.
OPTIONS = {
    "plain": {},
    "rare": {"every_s": 3600},
    "patience": {"params": {"learning_rate": 1.0}, "patience": 2},
    "best": {"params": {"learning_rate": 1.0, "use_best_model": True}, "patience": 3},
    "continued": {"continued": True},
    "stopped": {"stop": 12},
    "bernoulli": {"params": {"bootstrap_type": "Bernoulli", "subsample": 0.5, "rsm": 0.5}},
    "ordered": {"params": {"boosting_type": "Ordered"}},
    "lossguide": {"params": {"grow_policy": "Lossguide", "max_leaves": 5}},
    "langevin": {"params": {"langevin": True}},
}
KILLS = {"plain": random_kills(4), "stopped": [*FEW, ("SIGKILL", 12), ("SIGTERM", 12)]}
KILLS["rare"] = [("SIGTERM", 7), ("SIGKILL", 11), ("SIGTERM", ROUNDS), ("SIGKILL", 15)]
KILLS |= {name: [("SIGKILL", 2), ("SIGTERM", 4)] for name in ("patience", "best")}
SCENARIOS = OPTIONS | {f"{name}-killed": {**one, "ends": KILLS.get(name, FEW)} for name, one in OPTIONS.items()}


@pytest.fixture(scope="module")
def results(train_all):
    return train_all("catboost", SCENARIOS)


def model(trained):
    return json.loads(trained.result)


@pytest.mark.parametrize("name", SCENARIOS)
def test_training_ends_with_the_expected_exit_codes(results, name):
    assert results[name].codes == expected_codes(SCENARIOS[name]), results[name].logs


@pytest.mark.parametrize("name", OPTIONS)
def test_killed_training_ends_with_the_same_model(results, name):
    """Predictions, number of trees, best iteration and score, and what another callback has seen are the same."""
    assert results[f"{name}-killed"].result == results[name].result is not None


def test_different_options_end_with_different_models(results):
    """If all trainings ended with the same model, a comparison of models would prove nothing."""
    predictions = {name: str(model(results[name])[0]) for name in OPTIONS if name != "rare"}
    assert len(set(predictions.values())) == len(predictions)
    assert model(results["patience"])[1] < ROUNDS
    assert model(results["stopped"])[1] == 12


def test_progress_counts_iterations_and_continues_after_a_restart(results):
    before, killed, resumed = results["rare-killed"].progress[:3]
    assert [p.event for p in before][:1] == ["start"]
    assert {p.total for p in before} == {ROUNDS}
    assert [p.done for p in killed if p.event == "start"] == [7]
    assert [p.done for p in resumed if p.event == "start"] == [7]
    last = results["rare-killed"].progress[-1][-1]
    assert (last.event, last.done, last.total) == ("finish", ROUNDS, ROUNDS)
    assert set(last.metrics) == {"learn_RMSE", "validation_RMSE"}


def test_progress_ends_at_100_percent_when_early_stopping_ends_training(results):
    last = results["patience-killed"].progress[-1][-1]
    assert (last.event, last.done, last.percent) == ("finish", model(results["patience"])[1], 100)


def train(callback, rounds=5, others=(), data=DATA, init_model=None, **params):
    params = {"thread_count": 1, "verbose": False, "allow_writing_files": False} | params
    model = catboost.CatBoostRegressor(iterations=rounds, **params)
    return model.fit(*data, callbacks=[*others, callback], init_model=init_model)


def test_second_training_in_a_process_has_its_own_checkpoint(tmp_path, restart_process):
    def script():
        restart_process()
        return [train(PacelineCallback(path=tmp_path), rounds).tree_count_ for rounds in (3, 6)]

    assert script() == [3, 6]
    assert script() == [3, 6]


@pytest.mark.parametrize("rounds", [3, 7])
def test_changed_number_of_iterations_is_named(tmp_path, restart_process, rounds):
    train(PacelineCallback(path=tmp_path))
    restart_process()
    with pytest.raises(ValueError, match=f"iterations: got {rounds}, expected 5 as in the checkpoint"):
        train(PacelineCallback(path=tmp_path), rounds)


def test_other_data_with_the_same_labels_is_rejected(tmp_path, restart_process):
    train(PacelineCallback(path=tmp_path))
    restart_process()
    with pytest.raises(catboost.CatBoostError, match="datasets differ from the datasets used for snapshot"):
        train(PacelineCallback(path=tmp_path), data=(np.roll(DATA[0], 5, axis=0), DATA[1]))


def test_callback_that_ends_training_earlier_after_a_restart_is_rejected(tmp_path, restart_process):
    class End:
        def __init__(self, last):
            self.last = last

        def after_iteration(self, info):
            return info.iteration < self.last

    assert train(PacelineCallback(path=tmp_path), others=[End(4)]).tree_count_ == 4
    restart_process()
    assert train(PacelineCallback(path=tmp_path), others=[End(4)]).tree_count_ == 4
    restart_process()
    with pytest.raises(ValueError, match="ended training before iteration 4 of the checkpoint"):
        train(PacelineCallback(path=tmp_path), others=[End(2)])


def test_training_without_a_folder_saves_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert train(PacelineCallback()).tree_count_ == 5
    assert list(tmp_path.iterdir()) == []
    assert _session.current.loop is None


def test_training_without_the_callback_is_unchanged():
    model = catboost.CatBoostRegressor(iterations=2, verbose=False, allow_writing_files=False)
    assert model.fit(*DATA).tree_count_ == 2
    assert _session.current.last is None


def test_training_after_an_error_shows_its_progress():
    class Fail:
        def after_iteration(self, info):
            raise ArithmeticError

    with pytest.raises(catboost.CatBoostError, match="ArithmeticError"):
        train(PacelineCallback(), others=[Fail()])
    assert train(PacelineCallback()).tree_count_ == 5
    assert _session.current.last.event == "finish"


def test_threads_follow_the_share_of_the_processor(tmp_path, monkeypatch):
    control = tmp_path / "control.json"
    control.write_text(json.dumps({"devices": 1}))
    monkeypatch.setenv("PACELINE_CONTROL", str(control))
    for callback, before, after in ((PacelineCallback(), 2, 1), (PacelineCallback(threads=2), 1, 2)):
        assert train(callback, thread_count=before).tree_count_ == 5
        assert _session.current.last.threads == after


def test_snapshots_of_the_training_code_are_rejected():
    with pytest.raises(ValueError, match="save_snapshot: got True, expected False"):
        train(PacelineCallback(), save_snapshot=True)


def test_number_of_threads_changes_during_training(monkeypatch):
    used, library_train = [], catboost.CatBoost._train.__wrapped__

    def note_threads(model, pool, tests, params, *others):
        used.append(params["thread_count"])
        library_train(model, pool, tests, params, *others)

    class Share:
        def after_iteration(self, info):
            if info.iteration == 3:
                threads.library_pool.resize(2)
            return True

    monkeypatch.setattr(catboost.CatBoost, "_train", _connect(note_threads))
    assert train(PacelineCallback(), others=[Share()], thread_count=1).tree_count_ == 5
    assert used == [1, 2]


def test_worker_of_a_parameter_server_is_rejected(monkeypatch):
    monkeypatch.setenv("PACELINE_SERVER", "127.0.0.1:1")
    with pytest.raises(RuntimeError, match="a parameter server cannot train"):
        train(PacelineCallback())


class TestContract(AdapterContract):
    steps = ROUNDS

    def train(self, after_step, *, other=False):
        from .with_catboost import train

        return train(after_step, params={"depth": 2} if other else {})
