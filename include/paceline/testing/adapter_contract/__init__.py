"""The contract of adapters, as tests that the author of an adapter runs. Needs pytest.

Subclass ``AdapterContract`` as a test class, with a small training that uses the adapter::

    from paceline.testing.adapter_contract import AdapterContract

    class TestMyAdapter(AdapterContract):
        steps = 12

        def train(self, after_step, *, other=False):
            model = Model(rate=0.5 if other else 0.1)
            model.fit(data, steps=12, callbacks=[MyCallback(every_s=0), after_step])
            return model.weights.tolist()

The trainings run in real processes, which get real signals. No test depends on the speed of the machine.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import ClassVar

import pytest

from ._trainings import EXIT_CODES, Scenario, Trained, train_in_processes

__all__ = ["EXIT_CODES", "AdapterContract", "Scenario", "Trained", "train_in_processes"]


class AdapterContract:
    """Tests of an adapter: a training that is killed and restarted ends as an uninterrupted one.

    A subclass sets ``steps``, the number of steps of its training, at least 6, and implements ``train``.
    """

    steps: ClassVar[int]

    def train(self, after_step: Callable[[int], None], *, other: bool = False) -> object:
        """Train from the beginning or from the adapter's checkpoint. The adapter saves after each step: ``every_s=0``.

        Parameters
        ----------
        after_step:
            Call it after each step with the number of steps done, also after a restart. It may end the process.
        other:
            Train with another value of a parameter that changes the model, such as the learning rate.

        Returns
        -------
        result
            A value of JSON that shows the trained model, such as its weights as lists of numbers.
        """
        raise NotImplementedError

    @pytest.fixture(scope="class")
    @classmethod
    def trainings(cls, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trained]:
        """The trainings of all tests."""
        middle, third = cls.steps // 2, cls.steps // 3
        scenarios = {
            "uninterrupted": Scenario(),
            "killed": Scenario(signals=cls._kills()),
            "terminated": Scenario(signals=[("SIGTERM", middle)]),
            "stopped": Scenario(stop=third),
            "stopped and killed": Scenario(stop=third, signals=[("SIGTERM", third), ("SIGKILL", third)]),
            "not saved": Scenario(saves=False),
            "other": Scenario(options={"other": True}),
            "other after the first": Scenario(signals=[("SIGTERM", middle)], last={"other": True}),
        }
        folder = tmp_path_factory.mktemp("adapter")
        trainings = train_in_processes(f"{cls.__module__}:{cls.__qualname__}", scenarios, folder)
        for name, one in trainings.items():
            assert one.codes[-1] == 0, f"training {name!r} failed:\n{one.logs[-1]}"
        return trainings

    @classmethod
    def _kills(cls) -> list[tuple[str, int]]:
        """Return SIGTERM and SIGKILL in turn, after random steps in their order, of which no two are neighbours."""
        steps = range(1, cls.steps, 2)
        chosen = sorted(random.Random(cls.steps).sample(steps, min(4, len(steps))))  # noqa: S311
        return [(list(EXIT_CODES)[number % 2], step) for number, step in enumerate(chosen)]

    def test_killed_training_ends_as_an_uninterrupted_one(self, trainings: dict[str, Trained]) -> None:
        """SIGTERM and SIGKILL after random steps change nothing of the model."""
        killed, kills = trainings["killed"], self._kills()
        assert killed.codes == [EXIT_CODES[name] for name, _ in kills] + [0], "a start did not get its signal"
        starts = [progress[0].done for progress in killed.progress[1:]]
        near = [
            start - step in ((0, 1) if name == "SIGTERM" else (-1, 0))
            for start, (name, step) in zip(starts, kills, strict=True)
        ]
        assert all(near), f"after {kills}, training continued at the steps {starts}: does the adapter save each step?"
        assert killed.result == trainings["uninterrupted"].result, "does `write` save all that the next step needs?"

    def test_terminated_training_loses_no_step(self, trainings: dict[str, Trained]) -> None:
        """SIGTERM saves a checkpoint, after the current step at the latest, and the next start begins there."""
        terminated, middle = trainings["terminated"], self.steps // 2
        assert terminated.codes == [EXIT_CODES["SIGTERM"], 0]
        assert terminated.progress[1][0].done in (middle, middle + 1)
        assert terminated.result == trainings["uninterrupted"].result, "does `write` save all that the next step needs?"

    def test_progress_counts_all_steps(self, trainings: dict[str, Trained]) -> None:
        """Progress begins at 0 and ends at the number of steps."""
        first, *_, last = trainings["uninterrupted"].progress[0]
        assert (first.event, first.done, first.total) == ("start", 0, self.steps)
        message = "does the adapter call `advance` before each step and once after the last, or `end`?"
        assert (last.event, last.done, last.total) == ("finish", self.steps, self.steps), message

    @pytest.mark.parametrize("name", ["stopped", "stopped and killed"])
    def test_stop_early_ends_training_at_100_percent(self, trainings: dict[str, Trained], name: str) -> None:
        """The number of steps done becomes the total, and a restart does not train on."""
        stopped = trainings[name]
        last = stopped.progress[-1][-1]
        assert last.event == "finish", "does training end when `advance` returns False?"
        assert last.done == last.total < self.steps
        assert stopped.result == trainings["stopped"].result, "the restart has trained on"
        assert stopped.result != trainings["uninterrupted"].result, "all steps were trained"

    def test_checkpoint_of_another_training_is_not_restored(self, trainings: dict[str, Trained]) -> None:
        """Training with other parameters starts from the beginning, and ends with another model."""
        after, other = trainings["other after the first"], trainings["other"]
        assert other.result != trainings["uninterrupted"].result, "does `train` use `other`?"
        assert after.progress[-1][0].done == 0, "is what changes the model in the fingerprint?"
        assert after.result == other.result, "what the checkpoint contained is still in the model"

    def test_training_without_a_checkpoint_folder_is_the_same(self, trainings: dict[str, Trained]) -> None:
        """Outside a job, the adapter saves nothing."""
        assert trainings["not saved"].result == trainings["uninterrupted"].result
