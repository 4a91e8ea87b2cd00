"""Simulates one job under one controller from start to end. Used by tests and benchmarks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from paceline.control import Controller, Observation
from paceline.testing.plant import Plant, Run

_MAX_DEADLINES = 200  # simulate at most this multiple of the deadline


@dataclass(frozen=True)
class PacedRun:
    """Result of a simulated run. ``samples`` contains (time, progress in percent, devices) for each control step."""

    finished_s: float
    deadline_s: float
    device_seconds: float
    resizes: int
    steps: int
    infeasible_s: float | None
    samples: list[tuple[float, float, float]] = field(repr=False)

    @property
    def error_pct(self) -> float:
        """Deviation from the deadline in percent of the deadline, equation (7) of DECOR-NN."""
        return 100.0 * (self.finished_s - self.deadline_s) / self.deadline_s


def simulate_run(
    plant: Plant,
    controller: Controller,
    *,
    seed: int = 0,
    new_deadlines: Mapping[float, float] | None = None,
    ceilings: Mapping[float, float | None] | None = None,
    pauses_known: bool = False,
) -> PacedRun:
    """Simulate a job from start to end under ``controller``.

    Parameters
    ----------
    plant, controller:
        Properties of the job, and the controller.
    seed:
        Seed of the plant's noise.
    new_deadlines:
        Mapping from the time of a change to the new deadline, in seconds.
    ceilings:
        Mapping from the time of a change to the new ceiling; ``None`` removes the ceiling.
    pauses_known:
        Whether the pauses between epochs are known from an earlier run.

    Examples
    --------
    >>> from paceline.control import DeadlineController, Limits
    >>> plant = Plant(batches=1000, batch_s=0.05, startup_s=3.0, tail_s=0.8)
    >>> result = simulate_run(plant, DeadlineController(Limits(0.1, 4.0), deadline_s=60.0))
    >>> abs(result.error_pct) < 1.0
    True
    """
    new_deadlines_left = sorted((new_deadlines or {}).items())
    ceilings_left = sorted((ceilings or {}).items())
    ceiling: float | None = None
    run = Run(plant, controller.start(0.0), seed)
    device_s = last_s = 0.0
    resizes, infeasible_s = 0, None
    decided = run.devices
    samples: list[tuple[float, float, float]] = []
    next_s = 0.0
    while True:
        run.advance(next_s)
        device_s += run.devices * (run.now_s - last_s)
        last_s = run.now_s
        if run.finished_s is not None:
            break
        now_s = run.now_s
        while new_deadlines_left and new_deadlines_left[0][0] <= now_s:
            controller.move_deadline(now_s, new_deadlines_left.pop(0)[1])
        while ceilings_left and ceilings_left[0][0] <= now_s:
            ceiling = ceilings_left.pop(0)[1]
        observation = Observation(
            now_s,
            run.reported[0] if run.reported else None,
            run.total,
            done_s=run.reported[1] if run.reported else 0.0,
            allocated_devices=run.devices,
            pending=run.resizing,
            ceiling=ceiling,
            in_pause=run.in_pause,
            pauses_left_s=run.pauses_left_s(known=pauses_known),
            pause_sd_s=run.pause_sd_s(known=pauses_known),
            busy=run.busy,
            save_s=plant.save_s if run.done else None,
            resize_s=run.resize_s,
        )
        decision = controller.step(observation)
        if not decision.feasible and infeasible_s is None and run.trained_s is None:
            infeasible_s = now_s
        if decision.devices != decided:
            resizes += 1
            decided = decision.devices
            run.resize(decided)
        samples.append((now_s, decision.progress_pct, run.devices))
        next_s = now_s + decision.next_s
        if now_s > _MAX_DEADLINES * controller.deadline_s:
            raise RuntimeError(f"the simulated job did not end within {now_s:.0f} s")
    assert run.trained_s is not None
    return PacedRun(
        finished_s=run.finished_s,
        deadline_s=controller.deadline_s,
        device_seconds=device_s,
        resizes=resizes,
        steps=len(samples),
        infeasible_s=infeasible_s,
        samples=samples,
    )
