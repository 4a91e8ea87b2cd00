"""A task's first run starts from the measurements of other tasks with the same code."""

from __future__ import annotations

import json

import pytest

from paceline.control import PastTail
from paceline.operators import _related_runs
from paceline.operators._related_runs import VARIABLE, code_digest, load, load_tails, save

LEARNED = {
    "batches": 600, "startup_s": 2.5, "tail_s": 0.4, "devices": 1.2, "batches_per_s": 9.0, "exponent": 0.9,
    "pauses_s": 1.2, "epochs": 4,
}  # fmt: skip


class FakeVariables(dict):
    """A fake of Airflow's Variables that maps names to texts."""

    def get(self, key, default=None):
        return super().get(key, default)

    def set(self, key, value, description=None, serialize_json=False):
        self[key] = json.dumps(value, indent=2) if serialize_json else value


@pytest.fixture(autouse=True)
def variables(monkeypatch):
    made = FakeVariables()
    monkeypatch.setattr(_related_runs, "Variable", made)
    return made


def test_code_digest_changes_only_if_the_code_changes(tmp_path):
    script, other = tmp_path / "train.py", tmp_path / "other.py"
    script.write_text("print(1)")
    other.write_text("print(2)")
    digest = code_digest("training", "image:1", ["python", "train.py"], {"train.py": script})
    assert digest == code_digest("training", "image:1", ["python", "train.py"], {"train.py": script})
    others = [
        code_digest("training on 2 GPUs", "image:1", ["python", "train.py"], {"train.py": script}),
        code_digest("training", "image:2", ["python", "train.py"], {"train.py": script}),
        code_digest("training", "image:1", ["python", "train.py"], {"train.py": other}),
        code_digest("training", "image:1", ["python", "train.py"], {"train.py": script, "model.py": other}),
    ]
    assert len({digest, *others}) == 5


def test_speed_of_a_loaded_run_is_less_certain_than_when_saved():
    assert load("a") is None
    save("a", LEARNED, "docker", "image:1")
    loaded_run = load("a")
    assert (loaded_run.tail_s, loaded_run.pause_s, loaded_run.related, loaded_run.speed_sd) == (0.4, 0.3, True, 0.3)
    assert load("b") is None
    save("a", {**LEARNED, "tail_s": 7.0}, "docker", "image:1")
    assert load("a").tail_s == 7.0


def test_only_the_newest_runs_are_kept(variables):
    for number in range(60):
        save(str(number), LEARNED, "docker", "image:1")
    assert list(json.loads(variables[VARIABLE])) == [str(number) for number in range(10, 60)]


@pytest.mark.parametrize(
    "invalid", ["", "not JSON", "[1]", '{"a": "fast"}', json.dumps({"a": {**LEARNED, "batches_per_s": -1}})]
)
def test_invalid_values_are_ignored_and_replaced(variables, invalid):
    variables[VARIABLE] = invalid
    assert load("a") is None
    save("b", LEARNED, "docker", "image:1")
    assert load("b") is not None


def test_tails_are_those_of_the_most_similar_jobs(variables):
    assert load_tails("docker", "image:1") == []
    variables[VARIABLE] = json.dumps({"old": LEARNED, "invalid": 7})  # without a runtime
    for number, (runtime, image) in enumerate([("docker", "a")] * 5 + [("docker", "b")] * 3 + [("process", "a")]):
        save(str(number), {**LEARNED, "tail_s": number + 1, "save_s": 0.5}, runtime, image)
    assert load_tails("docker", "a") == [PastTail(number, 0.5) for number in (1, 2, 3, 4, 5)]
    assert [tail.tail_s for tail in load_tails("docker", "b")] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert load_tails("process", "b")[0] == PastTail(0.4, None)
    assert len(load_tails("process", "b")) == 10
