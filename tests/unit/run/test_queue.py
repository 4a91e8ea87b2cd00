"""A waiting job publishes its request, reads the arbiter's decisions, and starts after a grant."""

from __future__ import annotations

import functools
import logging
import threading
from datetime import datetime, timedelta, timezone

import pytest

from paceline.contract import Ceiling, PaceSample, Reason
from paceline.control import DeadlineController, Limits, PastRun
from paceline.errors import DeadlineInfeasibleError, TaskStoppedError
from paceline.run import MemoryState
from paceline.run import _queue as queue_module
from paceline.run._queue import Queue
from paceline.run.clock import SystemClock


@pytest.fixture
def make_queue(monkeypatch):
    monkeypatch.setattr(queue_module, "POLL_EVERY_S", 0.001)

    def queue_with_answers(answers, *, on_infeasible="best_effort", past=None, waited_s=0.0):
        """Return a queue whose fake arbiter sends the next of ``answers`` after each published sample."""
        pending = list(answers)

        class ArbitratedState(MemoryState):
            def set(self, key, value):
                super().set(key, value)
                if key == "pace":
                    samples.append(value)
                    if pending:
                        self.update(pending.pop(0))

        samples: list[dict] = []
        stop = threading.Event()
        store = ArbitratedState()
        controller = DeadlineController(Limits(0.1, 2.0), 60.0)
        options = {"pool": "training_pool", "log": logging.getLogger("test")}
        began = datetime.now(timezone.utc) - timedelta(seconds=waited_s)
        made = Queue(controller, past, began, on_infeasible=on_infeasible, clock=SystemClock(), **options)
        made.samples, made.store, made.stop = samples, store, stop  # the tests read these attributes
        made.wait = functools.partial(made.wait, store, stop)
        return made

    return queue_with_answers


def test_queue_publishes_its_request_until_it_gets_devices(make_queue, caplog):
    caplog.set_level(logging.INFO)
    answers = (Ceiling(0.0, 1, reason=Reason("queued", "others come first")), Ceiling(0.5, 2))
    waiting = make_queue(
        [{"ceiling": answer.to_json()} for answer in answers], past=PastRun(270, 1.5, 0.5, 1.0, 9.0, 0.9, 0.0)
    )
    assert waiting.wait().devices == 0.5
    assert {PaceSample.model_validate(sample).state for sample in waiting.samples} == {"waiting"}
    assert [sample["grant"] for sample in waiting.samples] == [0, 1]
    assert waiting.samples[0]["remaining"]["work_s"] == 30.0
    assert waiting.samples[0]["devices"] == 0.0
    waits = "Waiting for devices from the pool training_pool: no answer from the arbiter yet; is it running?"
    assert caplog.messages[0] == waits


def test_start_time_of_a_waiting_job_is_always_now(make_queue):
    waiting = make_queue([{"ceiling": Ceiling(0.5, 1).to_json()}], waited_s=600.0)
    waiting.wait()
    (sample,) = waiting.samples
    assert sample["began_s"] == sample["t_s"] >= 600.0


def test_deadline_rejected_by_the_arbiter_fails_the_run_or_is_extended(make_queue):
    refusal = Ceiling(0.0, 1, deadline_s=60.0, fits=False, earliest_s=93.0).to_json()
    refused = r"60 s cannot be promised beside the deadlines of other jobs, .* 93 s"
    with pytest.raises(DeadlineInfeasibleError, match=refused):
        make_queue([{"ceiling": refusal}], on_infeasible="fail").wait()
    waiting = make_queue([{"ceiling": refusal}, {"ceiling": Ceiling(0.5, 2).to_json()}], on_infeasible="extend")
    waiting.wait()
    assert waiting.store["deadline"] == 94.9
    assert waiting.samples[-1]["deadline_s"] == 94.9
    assert waiting.samples[-1]["feasible"], "the arbiter has not answered to the new deadline yet"


def test_changed_deadline_is_published_and_old_admission_decision_is_ignored(make_queue):
    old = Ceiling(0.0, 1, deadline_s=60.0, fits=False, earliest_s=93.0).to_json()
    moved = {"deadline": {"deadline": "200s", "by": "anna"}, "ceiling": old}
    waiting = make_queue([moved, {"ceiling": Ceiling(0.5, 2).to_json()}], on_infeasible="fail")
    assert waiting.wait().devices == 0.5
    assert [(one["deadline_s"], one["earliest_s"], one["feasible"]) for one in waiting.samples] == [
        (60.0, None, True),
        (200.0, None, True),
    ]


def test_deadline_in_the_past_does_not_change_the_request(make_queue):
    past = {"deadline": "5s", "ceiling": Ceiling(0.0, 1, deadline_s=5.0, fits=False, earliest_s=93.0).to_json()}
    waiting = make_queue([past, {"ceiling": Ceiling(0.5, 2).to_json()}], on_infeasible="fail", waited_s=30.0)
    assert waiting.wait().devices == 0.5
    assert {sample["deadline_s"] for sample in waiting.samples} == {60.0}


def test_queue_survives_a_store_outage(make_queue, caplog):
    waiting = make_queue([{"deadline": 61}, {"ceiling": Ceiling(1.0, 1).to_json()}])
    get, failures = waiting.store.get, [OSError("away")] * 3

    def get_unreliably(key):
        if failures:
            raise failures.pop()
        return get(key)

    waiting.store.get = get_unreliably
    assert waiting.wait().devices == 1.0
    assert "is not responding; trying again. away" in caplog.text


@pytest.mark.parametrize("invalid", ["much", -1, {"devices": None}, [], True, 1.5, 10**400])
def test_invalid_ceiling_is_rejected(make_queue, invalid, caplog):
    waiting = make_queue([{"ceiling": invalid, "deadline": 61}, {"ceiling": Ceiling(1.0, 1).to_json()}])
    assert waiting.wait().devices == 1.0
    assert caplog.text.count("New ceiling rejected") == 1


def test_stop_request_ends_the_queue(make_queue):
    waiting = make_queue([])
    waiting.stop.set()
    with pytest.raises(TaskStoppedError, match="was stopped while it waited"):
        waiting.wait()


@pytest.mark.parametrize("error", [EOFError("Request socket closed"), BrokenPipeError()])
def test_closed_supervisor_connection_ends_the_queue(make_queue, error):
    waiting = make_queue([])

    def fail(*arguments):
        raise error

    waiting.store.get = waiting.store.set = fail
    with pytest.raises(TaskStoppedError, match="the connection to the task's supervisor is closed"):
        waiting.wait()
