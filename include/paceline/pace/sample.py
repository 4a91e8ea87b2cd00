"""The newest sample of a run, as it is published under the key ``pace``: what people and other programs see of it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, get_args

from paceline.control import Controller, Decision
from paceline.train.progress import Progress

if TYPE_CHECKING:
    from typing import TypeGuard

State = Literal["waiting", "starting", "training", "paused", "finishing", "finished", "failed"]


_NUMBERS = ("t_s", "progress_pct", "setpoint_pct", "devices", "min_devices", "max_devices", "quantum", "deadline_s")


def is_sample(value: object) -> TypeGuard[dict[str, Any]]:
    """Whether a value of the live state is a sample: anybody who may write there can write anything.

    >>> is_sample({"state": "training"}), is_sample("fast")
    (False, False)
    """
    if not isinstance(value, dict) or not isinstance(value.get("updated_at"), str):
        return False
    known = value.get("state") in get_args(State) and isinstance(value.get("metrics"), dict)
    return known and all(isinstance(value.get(name), (int, float)) for name in _NUMBERS)


def origin_of(sample: Mapping[str, Any]) -> datetime:
    """The moment that a sample's seconds count from.

    >>> str(origin_of({"updated_at": "2030-01-01T12:00:30+00:00", "t_s": 30.0}))
    '2030-01-01 12:00:00+00:00'
    """
    return datetime.fromisoformat(sample["updated_at"]) - timedelta(seconds=float(sample["t_s"]))


def sample(
    state: State,
    now_s: float,
    updated_at: str,
    controller: Controller,
    decision: Decision,
    newest: Progress | None,
    *,
    held_devices: float,
    used_devices: float | None,
    ceiling: float | None,
    grant: int | None = None,
    restarts: int = 0,
    resizes: int = 0,
    step_ms: float | None = None,
) -> dict[str, Any]:
    """Put a sample together, JSON-safe. Seconds count from the moment that the deadline counts from.

    Parameters
    ----------
    state, now_s, updated_at:
        What the job does, and when that is: in seconds, and as a time with its zone.
    controller, decision:
        Who decides, and what was decided.
    newest:
        What the job reported last.
    held_devices, used_devices, ceiling:
        Devices that the job holds, how many of them it has kept busy, and the most it may be given.
    grant:
        Which of an arbiter's grants is in force; ``None`` for a job that shares its devices with nobody.
    restarts, resizes:
        How often so far.
    step_ms:
        What the last control step took.
    """
    return {
        "state": state,
        "t_s": round(now_s, 3),
        "updated_at": updated_at,
        "progress_pct": round(decision.progress_pct, 3),
        "setpoint_pct": round(decision.setpoint_pct, 3),
        "devices": held_devices,
        "min_devices": controller.limits.min_devices,
        "max_devices": controller.limits.max_devices,
        "quantum": controller.limits.quantum,
        "used_devices": _rounded(used_devices),
        "ceiling": ceiling,
        "grant": grant,
        "restarts": restarts,
        "resizes": resizes,
        "step_ms": _rounded(step_ms),
        "deadline_s": round(controller.deadline_s, 3),
        "alpha": controller.alpha,
        "forecast_s": _rounded(decision.finish_s),
        "earliest_s": _rounded(decision.earliest_s),
        "feasible": decision.feasible,
        "outlook": decision.outlook.to_dict() if decision.outlook else None,
        "epoch": newest.epoch if newest else None,
        "epochs": newest.epochs if newest else None,
        "loss": newest.loss if newest else None,
        "metrics": newest.metrics if newest else {},
        "threads": newest.threads if newest else None,
        "devices_in_force": newest.devices if newest else None,
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None or value == float("inf") else round(value, 3)
