"""The trigger of a deferred job: how it is stored, how it fails, and how it shortens garbage collections."""

from __future__ import annotations

import asyncio
import gc
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.models.trigger import Trigger
from airflow.serialization.decoders import smart_decode_trigger_kwargs
from airflow.serialization.encoders import encode_trigger
from tests.unit.operators.deferred_control.conftest import JOB, NOW

from paceline.airflow import steering
from paceline.airflow.runtimes import Docker
from paceline.contract import Deadline
from paceline.control import PastRun, PastTail
from paceline.operators import triggers
from paceline.operators._others import Need
from paceline.operators.deferred import DeferredJob
from paceline.operators.triggers import TrainingTrigger
from paceline.run.clock import SystemClock
from paceline.run.settings import Settings


@pytest.mark.parametrize(
    "job",
    [
        JOB,
        DeferredJob(
            Settings(deadline=Deadline(600.0), written="10m", max_devices=2.0, lease_s=600.0),
            Docker(image="trainer:2", memory=10**9).serialize(),
            "train",
            {"task": "train"},
            NOW,
            "gpus",
            1,
            4,
            PastRun(270, 1.5, 0.5, 1.0, 9.0, 0.9, 0.0),
            (PastTail(1.0), PastTail(2.0, 0.5)),
            True,
            NOW,
            Need("server", {"hall": "hall"}),
            "fleet_key",
            "s3://aws@bucket/checkpoints/train",
        ),
    ],
)
def test_trigger_gets_the_same_job_after_it_was_stored(job: DeferredJob) -> None:
    path, kwargs = TrainingTrigger(job.to_json()).serialize()
    assert path == "paceline.operators.triggers.TrainingTrigger"
    stored = Trigger.encrypt_kwargs(encode_trigger({"classpath": path, "kwargs": kwargs})["kwargs"])
    decode: Any = smart_decode_trigger_kwargs
    decoded = {name: decode(value) for name, value in Trigger._decrypt_kwargs(stored).items()}
    assert DeferredJob.read(TrainingTrigger(**decoded).job) == job


def test_trigger_that_fails_calls_a_worker_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow would fail the task of a trigger that raises an error, and its job would run on."""

    class Broken:
        @staticmethod
        async def take_over(task: object) -> Broken:
            raise RuntimeError("can't start new thread")

    monkeypatch.setattr(steering, "SteeredTask", Broken)
    trigger = TrainingTrigger(JOB.to_json())
    trigger.task_instance = SimpleNamespace(task_id="train")

    async def first_event() -> Any:
        return await anext(trigger.run())

    assert asyncio.run(first_event()).payload == {"reason": "error"}


SHORTEN_COLLECTIONS = triggers._shorten_collections


def test_garbage_collection_is_shortened_once(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen: list[int] = []
    monkeypatch.setattr(triggers.gc, "freeze", lambda: frozen.append(1))
    monkeypatch.setattr(triggers.gc, "callbacks", [])
    monkeypatch.setattr(triggers, "_shorten_collections", SHORTEN_COLLECTIONS)
    monkeypatch.setattr(triggers, "_clock", SystemClock)
    SHORTEN_COLLECTIONS.cache_clear()
    for _ in range(2):
        TrainingTrigger(JOB.to_json())._load()
    assert len(frozen) == len(gc.callbacks) == 1
    SHORTEN_COLLECTIONS.cache_clear()


class Cycle:
    """An object that only a garbage collection frees."""

    def __init__(self) -> None:
        self.itself = self


def test_full_garbage_collection_looks_once_an_hour_at_the_survivors_of_earlier_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hours = iter([0.0, 1.0, 2.0, 3600.0, 3601.0, 3602.0])
    monkeypatch.setattr(triggers, "time", SimpleNamespace(monotonic=lambda: next(hours)))
    survivors = triggers._Survivors()
    gc.disable()  # only the collections of this test
    gc.callbacks.append(survivors)
    try:
        job, garbage = Cycle(), Cycle()
        freed = weakref.ref(garbage)
        gc.collect()
        assert not any(one is job for one in gc.get_objects()), "it is excluded"
        del garbage
        gc.collect()
        assert freed() is not None
        gc.collect()
        assert freed() is None
        assert job.itself is job
    finally:
        gc.callbacks.remove(survivors)
        gc.unfreeze()
        gc.enable()


def test_short_garbage_collection_excludes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triggers.gc, "freeze", lambda: pytest.fail("it has not looked at all objects"))
    for phase in ("start", "stop"):
        triggers._Survivors()(phase, {"generation": 1})
