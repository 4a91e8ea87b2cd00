"""Shows the progress of a demo's DAG run: a line for each finished task, and a live line during training.

Used by the demos for the run that they have triggered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from demo.screen import Screen
from paceline.airflow.api import AirflowApi


@dataclass(frozen=True)
class TaskText:
    """Texts that the demo shows for a task: ``activity`` during the task, then the title and text from ``describe``.

    ``pace`` names the task whose progress the live line shows. With ``log``, the live line shows the newest line of the
    task's log.
    """

    activity: str
    describe: Callable[[Any], tuple[str, str]]
    pace: str | None = None
    log: bool = False


class RunDisplay:
    """Follows a run: prints a line for each finished task of ``tasks``, and a live line during training."""

    def __init__(
        self, airflow: AirflowApi, dag: str, run_id: str, screen: Screen, tasks: Mapping[str, TaskText]
    ) -> None:
        self._airflow, self._dag, self._run_id, self._screen = airflow, dag, run_id, screen
        self._tasks = tasks
        self._reported: set[str] = set()

    def follow(self, timeout_s: float) -> None:
        """Show progress until the run ends, and then the errors of failed tasks. Raise like ``AirflowApi.wait``."""
        state = self._airflow.wait(self._dag, self._run_id, timeout_s, before_poll=self._update)
        self._update()
        if state != "success":
            self._show_errors()

    def _update(self) -> None:
        states = self._airflow.task_states(self._dag, self._run_id)
        for task, text in self._tasks.items():
            state = states.get(task)
            if state == "success" and task not in self._reported:
                self._reported.add(task)
                result = self._airflow.xcom(self._dag, self._run_id, task)
                self._screen.step(*text.describe(result))
            elif {"running", "deferred"} & {state, states.get(text.pace or "")}:
                pace = self._airflow.task_state(self._dag, self._run_id, text.pace, "pace") if text.pace else None
                if pace:
                    self._screen.show_training(pace)
                elif text.log and (line := newest_line(self._log(task))):
                    self._screen.show_progress(text.activity, line)
                else:
                    self._screen.show_activity(text.activity)

    def _show_errors(self) -> None:
        for task, state in self._airflow.task_states(self._dag, self._run_id).items():
            if state == "failed":
                self._screen.print_failure(task, "failed. The end of its log:")
                for line in last_errors(self._log(task)):
                    self._screen.note(line)

    def _log(self, task: str) -> Sequence[Any]:
        """Return the events in the log of a task's newest try."""
        tries = self._airflow.task_instance(self._dag, self._run_id, task)["try_number"]
        path = f"/dags/{self._dag}/dagRuns/{self._run_id}/taskInstances/{task}/logs/{tries}"
        events: Sequence[Any] = self._airflow.api("GET", path)["content"]
        return events


def newest_line(log: Iterable[Any]) -> str:
    """Return the newest message of the operator itself in a task's log, or an empty text.

    >>> newest_line([{"event": "Point 1 of 24", "level": "info", "logger": "airflow.task.operators.Profile"},
    ...              {"event": "Pushing xcom", "level": "info", "logger": "task"}])
    'Point 1 of 24'
    """
    own = [
        str(event.get("event", ""))
        for event in log
        if isinstance(event, dict)
        and event.get("level") == "info"
        and str(event.get("logger")).startswith("airflow.task.operators")
    ]
    return own[-1] if own else ""


def last_errors(log: Iterable[Any], limit: int = 12) -> list[str]:
    """Return the last warnings, errors and exceptions in a task's log, at most ``limit`` lines, newest last.

    >>> last_errors([{"event": "start", "level": "info"}, {"event": "Task failed", "level": "error",
    ...               "error_detail": [{"exc_type": "InvalidInputError", "exc_value": "alpha: got 2"}]}])
    ['Task failed', 'InvalidInputError: alpha: got 2']
    """
    lines: list[str] = []
    for event in log:
        if isinstance(event, dict) and event.get("level") in ("warning", "error", "critical"):
            lines += str(event.get("event", "")).splitlines()
            # An exception and its cause often have the same text. Keep the cause, which comes last.
            causes = {str(one.get("exc_value")): str(one.get("exc_type")) for one in event.get("error_detail") or ()}
            lines += [f"{kind}: {value}" for value, kind in causes.items()]
    return lines[-limit:]


def _describe_drift(summary: Mapping[str, Any]) -> tuple[str, str]:
    return "Drift", str(summary["reason"]).removeprefix("Drift ")


def _describe_data(days: Mapping[str, Any]) -> tuple[str, str]:
    return "Data", f"flights until {days['until']} for training, held-out flights until {days['hold_out_until']}"


def _describe_training(result: Mapping[str, Any]) -> tuple[str, str]:
    return "Training", (
        f"done at {result['finished_s']:.1f} s, deadline {result['deadline_s']:g} s ({_deviation(result)}), "
        f"on {result['mean_devices']:.2f} cores on average"
    )


def _deviation(result: Mapping[str, Any]) -> str:
    """Return the deviation from the deadline; a job that began after its deadline has none."""
    return "began too late" if result["error_pct"] is None else f"{result['error_pct']:+.2f} %"


def _describe_evaluation(result: Mapping[str, Any]) -> tuple[str, str]:
    champion = result["champion"]
    return "Evaluation", (
        f"AUC on the held-out days: champion {'none' if champion is None else format(champion, '.3f')}, "
        f"challenger {result['challenger']:.3f}"
    )


def _describe_promotion(result: Mapping[str, Any]) -> tuple[str, str]:
    if result["promoted"]:
        return "Promotion", f"version {result['version']} replaces version {result['previous_version']} as champion"
    return "Promotion", f"none: {result['reason']}"


def _describe_profile(result: Mapping[str, Any]) -> tuple[str, str]:
    if not result["profiled"]:
        return "Profiles", "all machines have profiles from an earlier run"
    errors = [float(row["mape_pct"]) for row in result["report"]]
    return "Profiles", (
        f"{len(errors)} functions learned for {' and '.join(result['profiled'])}, "
        f"mean error {sum(errors) / len(errors):.1f} %"
    )


def _describe_schedule(plan: Mapping[str, Any]) -> tuple[str, str]:
    shards = [f"{name} {one['samples']:,} flights" for name, one in plan["workers"].items()]
    excluded = [f"{name} is excluded, {reason}" for name, reason in plan["excluded"].items()]
    return "Schedule", "; ".join([", ".join(shards), *excluded])


def _describe_distributed_training(result: Mapping[str, Any]) -> tuple[str, str]:
    title, text = _describe_training(result)
    names = ", ".join(f"{name} {_deviation(one)}" for name, one in result["workers"].items())
    return title, f"{text}; {names}"


_DRIFT = TaskText("comparing the weather of July with that of February", _describe_drift)
_DATA = TaskText("reading the training data from the store", _describe_data)
_EVALUATION = TaskText("scoring champion and challenger on the held-out days", _describe_evaluation)
_PROMOTION = TaskText("deciding on the promotion", _describe_promotion)

# The tasks of the example DAGs that the demo shows, in order.
TASKS = {
    "drift": _DRIFT,
    "prepare": _DATA,
    "train": TaskText("starting training", _describe_training, pace="train"),
    "evaluate": _EVALUATION,
    "promote": _PROMOTION,
}
EDGE_TASKS = {
    "drift": _DRIFT,
    "prepare": _DATA,
    "profile": TaskText("profiling new machines while their cameras run", _describe_profile, log=True),
    "schedule": TaskText("measuring the load of each machine", _describe_schedule, log=True),
    "train.result": TaskText("starting training", _describe_distributed_training, pace="train.ewr"),
    "evaluate": _EVALUATION,
    "promote": _PROMOTION,
}
