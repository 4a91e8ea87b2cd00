"""A training that waits for devices says what it needs, hears what it is told, and begins with what it is given."""

from __future__ import annotations

import logging
import threading
from datetime import datetime, timedelta, timezone

import pytest

from paceline.contract import Ceiling, PaceSample
from paceline.control import DeadlineController, Limits, RemainingWork
from paceline.errors import AskedToEndError, DeadlineInfeasibleError
from paceline.run import MemoryState
from paceline.run import queue as waiting_line
from paceline.run.queue import Queue


@pytest.fixture
def queue(monkeypatch):
    monkeypatch.setattr(waiting_line, "_LOOK_EVERY_S", 0.001)

    def make(says, *, on_infeasible="best_effort", remaining=None, waited_s=0.0):
        """A queue whose arbiter says one thing after the other, each time something was published."""
        waiting = list(says)

        class Store(MemoryState):
            def set(self, key, value):
                super().set(key, value)
                if key == "pace":
                    samples.append(value)
                    if waiting:
                        self.update(waiting.pop(0))

        samples: list[dict] = []
        killed = threading.Event()
        store = Store()
        controller = DeadlineController(Limits(0.1, 2.0), 60.0)
        options = {"pool": "trainings", "asked_to_end": killed, "log": logging.getLogger("test")}
        began = datetime.now(timezone.utc) - timedelta(seconds=waited_s)
        made = Queue(store, controller, remaining, began, on_infeasible=on_infeasible, **options)
        made.samples, made.store, made.killed = samples, store, killed  # for tests to look at
        return made

    return make


def test_it_says_what_it_needs_until_it_is_given_devices(queue):
    waits = queue(
        [{"ceiling": Ceiling(0.0, 1, reason="others come first").to_json()}, {"ceiling": Ceiling(0.5, 2).to_json()}],
        remaining=RemainingWork(30.0, 0.9, 2.0),
    )
    assert waits.wait().devices == 0.5
    assert {PaceSample.model_validate(sample).state for sample in waits.samples} == {"waiting"}
    assert [sample["grant"] for sample in waits.samples] == [0, 1]
    assert waits.samples[0]["remaining"]["work_s"] == 30.0
    assert waits.samples[0]["devices"] == 0.0


def test_a_waiting_job_starts_now_so_its_safety_factor_does_not_count_the_wait(queue):
    waits = queue([{"ceiling": Ceiling(0.5, 1).to_json()}], waited_s=600.0)
    waits.wait()
    (sample,) = waits.samples
    assert sample["began_s"] == sample["t_s"] >= 600.0


def test_a_deadline_that_does_not_fit_fails_the_run_or_moves_to_the_earliest_that_does(queue):
    no = Ceiling(0.0, 1, asked_s=60.0, fits=False, earliest_s=93.0).to_json()
    with pytest.raises(DeadlineInfeasibleError, match=r"60 s does not fit beside those of others, .* 93 s"):
        queue([{"ceiling": no}], on_infeasible="fail").wait()
    waits = queue([{"ceiling": no}, {"ceiling": Ceiling(0.5, 2).to_json()}], on_infeasible="extend")
    waits.wait()
    assert waits.store["deadline"] == 94.9
    assert waits.samples[-1]["deadline_s"] == 94.9


def test_a_deadline_moved_while_waiting_is_published_and_an_answer_to_the_old_one_ignored(queue):
    old = Ceiling(0.0, 1, asked_s=60.0, fits=False, earliest_s=93.0).to_json()
    moved = {"deadline": {"deadline": "200s", "by": "anna"}, "ceiling": old}
    waits = queue([moved, {"ceiling": Ceiling(0.5, 2).to_json()}], on_infeasible="fail")
    assert waits.wait().devices == 0.5
    assert [sample["deadline_s"] for sample in waits.samples] == [60.0, 200.0]


def test_a_store_that_does_not_answer_for_a_while_ends_nobody(queue, caplog):
    waits = queue([{"deadline": 61}, {"ceiling": Ceiling(1.0, 1).to_json()}])
    get, failures = waits.store.get, [OSError("away")] * 3

    def unreliable(key):
        if failures:
            raise failures.pop()
        return get(key)

    waits.store.get = unreliable
    assert waits.wait().devices == 1.0
    assert "does not answer; trying again. away" in caplog.text


@pytest.mark.parametrize("nonsense", ["much", -1, {"devices": None}, [], True, 1.5, 10**400])
def test_a_ceiling_that_makes_no_sense_is_not_taken(queue, nonsense, caplog):
    waits = queue([{"ceiling": nonsense, "deadline": 61}, {"ceiling": Ceiling(1.0, 1).to_json()}])
    assert waits.wait().devices == 1.0
    assert caplog.text.count("Not taken") == 1


def test_who_is_killed_while_waiting_ends(queue):
    waits = queue([])
    waits.killed.set()
    with pytest.raises(AskedToEndError, match="asked to end while it waited"):
        waits.wait()


@pytest.mark.parametrize("error", [EOFError("Request socket closed"), BrokenPipeError()])
def test_whose_supervisor_has_gone_does_not_wait_for_ever(queue, error):
    waits = queue([])

    def gone(*arguments):
        raise error

    waits._store.get = waits._store.set = gone
    with pytest.raises(AskedToEndError, match="whoever runs this task has gone"):
        waits.wait()
