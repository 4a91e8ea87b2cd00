"""A container under the deadline controller that trains on whole devices: one process stands in for each GPU."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from paceline.contract import DEADLINE, PACE
from paceline.control import GPU_QUANTUM, Limits, make_controller
from paceline.errors import TaskStoppedError
from paceline.run import Exchange, Handover, MemoryState, PaceLoop, Surroundings
from paceline.runtime import DockerRuntime, JobSpec

SCRIPT = Path(__file__).parent / "training" / "digits.py"

pytestmark = [pytest.mark.docker, pytest.mark.timeout(900)]


class DeadlineChangingState(MemoryState):
    """A job's live state that changes the deadline to an infeasible one as soon as training has started."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[dict[str, Any]] = []

    def set(self, key: str, value: Any) -> None:
        super().set(key, value)
        if key != PACE:
            return
        self.seen.append(value)
        if value["progress_pct"] >= 0.1 and value["earliest_s"] and DEADLINE not in self:
            self[DEADLINE] = value["t_s"] + 0.3 * (value["earliest_s"] - value["t_s"])

    def second_process_joined(self) -> bool:
        """Return whether the job trains with two processes."""
        return any(sample["devices_in_force"] == 2 for sample in self.seen)


@pytest.mark.parametrize("cores_per_device", [1.0, 0.5])
def test_second_process_joins_for_an_earlier_deadline(docker_client, trainer_image, cores_per_device):
    state = DeadlineChangingState()
    controller = make_controller("default", Limits(1, 2, GPU_QUANTUM), deadline_s=3600.0)
    devices = controller.start(0.0)
    assert devices == 1
    spec = JobSpec(
        name="whole-devices",
        command=["python", SCRIPT.name, "--whole", "--batches", "10000"],
        devices=devices,
        cores_per_device=cores_per_device,
        image=trainer_image,
        files={SCRIPT.name: SCRIPT},
    )
    job = DockerRuntime(docker_client).start(spec)
    exchange = Exchange(state)
    try:
        origin = datetime.now(timezone.utc)
        surroundings = Surroundings(stopped=state.second_process_joined)
        loop = PaceLoop(job, controller, exchange, Handover(origin, devices), surroundings=surroundings)
        with pytest.raises(TaskStoppedError, match="was stopped"):  # the second process has joined
            loop.run()
    finally:
        exchange.close()
        job.remove()
    assert state.second_process_joined()
    assert [sample["devices"] for sample in state.seen][:: len(state.seen) - 1] == [1.0, 2.0]
