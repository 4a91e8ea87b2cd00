"""What the arguments of a training mean for its control: checked when the DAG is read, and used when it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from paceline.contract import Deadline
from paceline.control import CONTROLLERS, BudgetController, Controller, Gains, Limits, PastRun, make_controller
from paceline.errors import InvalidInputError
from paceline.pace.feasibility import ON_INFEASIBLE

from ._origin import DEADLINE_FROM
from ._values import is_template, number, optional_number

if TYPE_CHECKING:
    from paceline.elastic import Options

OBJECTIVES = ("deadline", "throughput")
_ALPHA = "a number in (0, 1]"


class Steered(Protocol):
    """A task with the arguments of a training that say how it is steered, see ``DeadlineTrainingOperator``."""

    objective: str
    budget: float | str | None
    scaling: Options | None
    deadline: Any
    deadline_from: str
    alpha: float | str
    min_devices: float | str
    max_devices: float | str | None
    quantum: float
    gpus: int
    control_period: float
    on_infeasible: str
    on_deadline_alert: Sequence[Callable[..., Any]]
    controller: str
    gain: float | None
    integral_weight: float | None

    @property
    def log(self) -> Any:
        """The task's log."""


def check(task: Steered) -> None:
    """Raise for every argument that is known to be wrong by now; templates are checked when they are rendered."""
    if task.objective not in OBJECTIVES:
        raise InvalidInputError("objective", task.objective, "one of " + ", ".join(OBJECTIVES))
    if task.objective == "deadline" and task.budget is not None:
        accepted = "None, unless the objective is 'throughput': max_devices limits a training by a deadline"
        raise InvalidInputError("budget", task.budget, accepted)
    if not is_template(task.deadline) and not (task.deadline is None and task.objective == "throughput"):
        Deadline.parse(task.deadline)
    if not is_template(task.deadline_from) and task.deadline_from not in DEADLINE_FROM:
        raise InvalidInputError("deadline_from", task.deadline_from, "one of " + ", ".join(DEADLINE_FROM))
    if not is_template(task.on_infeasible) and task.on_infeasible not in ON_INFEASIBLE:
        raise InvalidInputError("on_infeasible", task.on_infeasible, "one of " + ", ".join(ON_INFEASIBLE))
    if not is_template(task.alpha) and not 0 < number("alpha", task.alpha, _ALPHA) <= 1:
        raise InvalidInputError("alpha", task.alpha, _ALPHA)
    if number("control_period", task.control_period, "a number of seconds greater than 0") <= 0:
        raise InvalidInputError("control_period", task.control_period, "a number of seconds greater than 0")
    least = 0.0 if is_template(task.min_devices) else number("min_devices", task.min_devices)
    most = None if is_template(task.max_devices) else optional_number("max_devices", task.max_devices)
    Limits(least, max(least, task.quantum) if most is None else most, task.quantum)
    budget = None if is_template(task.budget) else optional_number("budget", task.budget)
    if budget is not None and budget <= 0:
        raise InvalidInputError("budget", budget, "a number greater than 0")
    for callback in task.on_deadline_alert:
        if not callable(callback):
            raise InvalidInputError("on_deadline_alert", callback, "a notifier, a function, or several of them")
    if task.controller not in CONTROLLERS:
        raise InvalidInputError("controller", task.controller, "one of " + ", ".join(CONTROLLERS))
    if (task.gain is None) != (task.integral_weight is None):
        raise InvalidInputError("gain", task.gain, "gain and integral_weight together, or neither")
    if task.gain is not None and task.controller != "paper":
        raise InvalidInputError("gain", task.gain, "None, unless the controller is 'paper'")
    _gains(task)


def limits(task: Steered, capacity: float) -> Limits:
    """Fewest and most devices, on a machine that has ``capacity`` of them."""
    name = "budget" if task.objective == "throughput" else "max_devices"
    most = optional_number(name, getattr(task, name))
    if most is None and task.quantum == 1 and task.gpus:
        most = float(task.gpus)
    if most is not None and most > capacity:
        task.log.warning("%s: %g asked for, the machine has %g: using these", name, most, capacity)
    # A job with nothing at all would neither end nor show how fast it is.
    least = max(number("min_devices", task.min_devices), task.quantum)
    if task.objective == "throughput":
        from paceline.elastic import Options

        least = max(least, (task.scaling or Options()).fewest_cores)
    if most is None and least > capacity:
        raise InvalidInputError("min_devices", least, f"at most the {capacity:g} cores of the machine")
    return Limits(least, capacity if most is None else max(min(most, capacity), least), task.quantum)


def controller(task: Steered, within: Limits, deadline_s: float, past: PastRun | None) -> Controller:
    """Who decides how many devices the job gets."""
    if task.deadline is None:
        return BudgetController(within, period_s=task.control_period, past=past)
    return make_controller(
        task.controller,
        within,
        # A try that comes after the deadline still has work to end.
        max(deadline_s, 1e-3),
        alpha=number("alpha", task.alpha, _ALPHA),
        period_s=task.control_period,
        past=past,
        gains=_gains(task),
    )


def _gains(task: Steered) -> Gains | None:
    if task.gain is None or task.integral_weight is None:
        return None
    return Gains(task.gain, task.integral_weight)
