"""Follows a run of a demo's DAG: a line for each task that is done, one live line while the model trains.

Called by the demos with a run that they have triggered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from paceline.airflow.api import AirflowApi
from paceline.airflow.demo.screen import Screen


@dataclass(frozen=True)
class TaskText:
    """What is told of a task: what it is doing, in words; its result, as a title and a sentence; its live line, if any.

    ``pace`` is the task whose training is shown meanwhile.
    """

    doing: str
    describe: Callable[[Any], tuple[str, str]]
    pace: str | None = None


class Watch:
    """Follows a run: a line for each of ``tasks`` that is done, in their order, and the live line while training."""

    def __init__(
        self, airflow: AirflowApi, dag: str, run_id: str, screen: Screen, tasks: Mapping[str, TaskText]
    ) -> None:
        self._airflow, self._dag, self._run_id, self._screen = airflow, dag, run_id, screen
        self._tasks = tasks
        self._told: set[str] = set()

    def to_the_end(self) -> None:
        """Return when the run has ended, having told why if that was not a success."""
        state = self._airflow.wait(self._dag, self._run_id, timeout_s=3600, each=self._look)
        self._look()
        if state != "success":
            self._explain()

    def _look(self) -> None:
        states = self._airflow.task_states(self._dag, self._run_id)
        for task, told in self._tasks.items():
            state = states.get(task)
            if state == "success" and task not in self._told:
                self._told.add(task)
                result = self._airflow.xcom(self._dag, self._run_id, task)
                self._screen.step(*told.describe(result))
            elif "running" in (state, states.get(told.pace or "")):
                pace = self._airflow.task_state(self._dag, self._run_id, told.pace, "pace") if told.pace else None
                if pace:
                    self._screen.training(pace)
                else:
                    self._screen.now(told.doing)

    def _explain(self) -> None:
        for task, state in self._airflow.task_states(self._dag, self._run_id).items():
            if state == "failed":
                tries = self._airflow.task_instance(self._dag, self._run_id, task)["try_number"]
                path = f"/dags/{self._dag}/dagRuns/{self._run_id}/taskInstances/{task}/logs/{tries}"
                self._screen.failed(task, "failed, as its log says:")
                for line in last_words(self._airflow.api("GET", path)["content"]):
                    self._screen.note(line)


def last_words(log: Iterable[Any], most: int = 12) -> list[str]:
    """Pick what a person needs from a task's log: warnings, errors and what was raised, the newest last.

    >>> last_words([{"event": "start", "level": "info"}, {"event": "Task failed", "level": "error",
    ...              "error_detail": [{"exc_type": "InvalidInputError", "exc_value": "alpha: got 2"}]}])
    ['Task failed', 'InvalidInputError: alpha: got 2']
    """
    lines: list[str] = []
    for event in log:
        if isinstance(event, dict) and event.get("level") in ("warning", "error", "critical"):
            lines += str(event.get("event", "")).splitlines()
            # An error and what caused it often say the same; the cause comes last and has the better name.
            causes = {str(one.get("exc_value")): str(one.get("exc_type")) for one in event.get("error_detail") or ()}
            lines += [f"{kind}: {value}" for value, kind in causes.items()]
    return lines[-most:]


def _describe_drift(summary: Mapping[str, Any]) -> tuple[str, str]:
    return "Drift", str(summary["reason"]).removeprefix("Drift ")


def _describe_data(days: Mapping[str, Any]) -> tuple[str, str]:
    return "Data", f"all flights until {days['until']} for training, the days until {days['hold_out_until']} held out"


def _describe_training(result: Mapping[str, Any]) -> tuple[str, str]:
    return "Training", (
        f"done at {result['finished_s']:.1f} s, deadline {result['deadline_s']:g} s ({result['error_pct']:+.2f} %), "
        f"on {result['mean_devices']:.2f} cores on average"
    )


def _describe_evaluation(result: Mapping[str, Any]) -> tuple[str, str]:
    champion = result["champion"]
    return "Evaluation", (
        f"AUC on the days held out: champion {'none' if champion is None else format(champion, '.3f')}, "
        f"challenger {result['challenger']:.3f}"
    )


def _describe_promotion(result: Mapping[str, Any]) -> tuple[str, str]:
    if result["promoted"]:
        return "Promotion", f"version {result['version']} is the champion now, in place of {result['previous_version']}"
    return "Promotion", f"none: {result['reason']}"


def _describe_profile(result: Mapping[str, Any]) -> tuple[str, str]:
    if not result["profiled"]:
        return "Profiles", "all machines are known from an earlier run"
    errors = [float(row["mape_pct"]) for row in result["report"]]
    return "Profiles", (
        f"{len(errors)} functions learned of {' and '.join(result['profiled'])}, "
        f"{sum(errors) / len(errors):.1f} % off on average"
    )


def _describe_schedule(plan: Mapping[str, Any]) -> tuple[str, str]:
    parts = [f"{name} {part['samples']:,} flights" for name, part in plan["workers"].items()]
    left = [f"{name} is left out, {why}" for name, why in plan["left_out"].items()]
    return "Schedule", "; ".join([", ".join(parts), *left])


def _describe_team(result: Mapping[str, Any]) -> tuple[str, str]:
    title, text = _describe_training(result)
    names = ", ".join(f"{name} {one['error_pct']:+.2f} %" for name, one in result["workers"].items())
    return title, f"{text}; {names}"


_DRIFT = TaskText("comparing the weather of July with that of February", _describe_drift)
_DATA = TaskText("reading the training data from the store", _describe_data)
_EVALUATION = TaskText("scoring champion and challenger on the days held out", _describe_evaluation)
_PROMOTION = TaskText("deciding", _describe_promotion)

# The tasks of the example DAGs that are told of, in order.
TASKS = {
    "drift": _DRIFT,
    "prepare": _DATA,
    "train": TaskText("starting the training", _describe_training, pace="train"),
    "evaluate": _EVALUATION,
    "promote": _PROMOTION,
}
EDGE_TASKS = {
    "drift": _DRIFT,
    "prepare": _DATA,
    "profile": TaskText("measuring machines that nobody knows yet, beside their cameras", _describe_profile),
    "schedule": TaskText("looking how busy each machine is", _describe_schedule),
    "train.result": TaskText("starting the training", _describe_team, pace="train.ewr"),
    "evaluate": _EVALUATION,
    "promote": _PROMOTION,
}
