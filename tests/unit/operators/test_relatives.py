"""What one task's runs have shown is kept for others that run the same code."""

from __future__ import annotations

import pytest

from paceline.operators import _relatives
from paceline.operators._relatives import VARIABLE, code_digest, recall, remember

SHOWN = {
    "batches": 600, "startup_s": 2.5, "tail_s": 0.4, "devices": 1.2, "batches_per_s": 9.0, "exponent": 0.9,
    "pauses_s": 1.2, "epochs": 4,
}  # fmt: skip


class Variables(dict):
    def get(self, key, default=None, deserialize_json=False):
        if self.get_text(key) == "not JSON":
            raise ValueError("Expecting value")
        return super().get(key, default)

    def get_text(self, key):
        return super().get(key)

    def set(self, key, value, description=None, serialize_json=False):
        self[key] = value


@pytest.fixture(autouse=True)
def variables(monkeypatch):
    made = Variables()
    monkeypatch.setattr(_relatives, "Variable", made)
    return made


def test_the_same_code_is_known_whatever_its_arguments_and_another_one_is_not(tmp_path):
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


def test_what_was_shown_is_found_again_and_its_speed_believed_less():
    assert recall("a") is None
    remember("a", SHOWN)
    found = recall("a")
    assert (found.tail_s, found.pause_s, found.speed_sd) == (0.4, 0.3, 0.3)
    assert recall("b") is None
    remember("a", {**SHOWN, "tail_s": 7.0})
    assert recall("a").tail_s == 7.0


def test_only_the_newest_are_kept(variables):
    for number in range(60):
        remember(str(number), SHOWN)
    assert list(variables[VARIABLE]) == [str(number) for number in range(10, 60)]


@pytest.mark.parametrize("nonsense", ["not JSON", [1], {"a": "fast"}, {"a": {**SHOWN, "batches_per_s": -1}}, None])
def test_nonsense_in_its_place_is_no_relative_and_is_replaced(variables, nonsense):
    variables[VARIABLE] = nonsense
    assert recall("a") is None
    remember("b", SHOWN)
    assert recall("b") is not None
