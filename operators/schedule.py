"""``ScheduleOperator``: chooses machines for distributed training and the number of samples for each machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException

from paceline.airflow.arguments import number, one_of, path_or_url, positive_integer, read_fields
from paceline.airflow.places import storage_path
from paceline.airflow.tasks import CheckedTask
from paceline.airflow.values import Reader, optional_text
from paceline.contract import SCHEDULE_XCOM
from paceline.errors import InvalidInputError, PacelineError, RuntimeUnavailableError
from paceline.extras import require
from paceline.fleet import Fleet, Machine
from paceline.fleet.faults import checked_fleet, measuring_faults, raise_first

from ._gauges import Gauges
from ._identity import job_labels, task_labels, unique_name
from ._restrictions import check_root, check_runtime
from ._team import fleet_runtime, machine_arguments

if TYPE_CHECKING:
    from airflow.sdk import Context

    from paceline.airflow.runtimes import RuntimeSettings
    from paceline.profiles import DeviceProfile
    from paceline.schedule import Plan, State

_MAX_PARALLEL = 32  # machines whose load is measured at the same time
SCHEDULERS = ("default", "deep_edge", "fair")


def _at_least_zero(field: str, value: object, accepted: str) -> float:
    amount = number(field, value, accepted)
    if amount < 0:
        raise InvalidInputError(field, value, accepted)
    return amount


_READERS: Mapping[str, Reader] = {
    "runtime": fleet_runtime,
    "profiles": path_or_url,
    "samples": positive_integer,
    "epochs": positive_integer,
    "sample_bytes": lambda field, value: _at_least_zero(field, value, "a number of bytes, at least 0"),
    "data": optional_text,
    "scheduler": one_of(SCHEDULERS),
}


class ScheduleOperator(CheckedTask, BaseOperator):
    """A task that measures the load of a fleet's machines and distributes the training samples among them.

    The schedule excludes a machine whose applications would exceed their latency limits during training, and a machine
    whose engine does not respond. Each kind of device needs a profile, which
    :class:`~paceline.operators.ProfileOperator` measures. The task fails if the size of a machine is not that of the
    machine on which its profile was measured.

    Parameters
    ----------
    fleet:
        The machines, see :func:`paceline.fleet.load`.
    profiles:
        Path or object storage URL of the profiles. (templated)
    samples:
        Number of training samples in an epoch. (templated)
    epochs:
        Number of epochs. More epochs make a costly transfer of data worthwhile. (templated)
    sample_bytes:
        Size of a sample in bytes, which determines the cost of a transfer to machines without the data. (templated)
    data:
        Name of the data set. A machine with this name in its ``data`` needs no transfer. (templated)
    initialize_s:
        Seconds between the arrival of the data and the first batch.
    scheduler:
        ``"default"``, ``"deep_edge"`` (Algorithm 1 as published) or ``"fair"``. (templated)
    measure_s:
        Seconds to measure the machines' load.
    runtime:
        Runtime of the training job: :class:`~paceline.operators.Docker`, or for a fleet of nodes
        :class:`~paceline.operators.Kubernetes`, whose cluster, namespace and image a small pod on each node uses.
        (templated)

    Returns
    -------
    dict
        The plan for :func:`~paceline.operators.train_on_fleet`, see :class:`~paceline.contract.ScheduleResult`.

    Examples
    --------
    >>> from paceline.fleet import Fleet, Machine
    >>> from paceline.operators import ScheduleOperator
    >>> gate = Machine(name="gate-1", kind="nano", cores=4, memory_gib=4)
    >>> schedule = ScheduleOperator(
    ...     task_id="schedule", fleet=Fleet(machines=[gate], parameter_server=gate), profiles="profiles", samples=3855
    ... )
    """

    template_fields: Sequence[str] = (
        "profiles",
        "samples",
        "epochs",
        "sample_bytes",
        "data",
        "scheduler",
        "runtime",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"runtime": "json"}
    ui_color = "#fff3cf"

    def __init__(
        self,
        *,
        fleet: Fleet,
        profiles: str,
        samples: int | str,
        epochs: int | str = 1,
        sample_bytes: float | str = 0,
        data: str | None = None,
        initialize_s: float = 0.0,
        scheduler: str = "default",
        measure_s: float = 5.0,
        runtime: RuntimeSettings | str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.fleet = fleet
        self.profiles = profiles
        self.samples: Any = samples
        self.epochs: Any = epochs
        self.sample_bytes: Any = sample_bytes
        self.data = data
        self.initialize_s = initialize_s
        self.scheduler = scheduler
        self.measure_s = measure_s
        raise_first(measuring_faults(checked_fleet(fleet)))
        given = {} if runtime is None else {"runtime": runtime}
        self.runtime: Any = machine_arguments(given, fleet)["runtime"]
        self._gauges = Gauges()
        for name in ("initialize_s", "measure_s"):
            _at_least_zero(name, getattr(self, name), "a number of seconds, at least 0")
        read_fields(self, _READERS, rendered=False)

    def execute(self, context: Context) -> dict[str, Any]:
        """Measure the load, choose the machines and log the reasons."""
        try:
            read_fields(self, _READERS, rendered=True)
            check_runtime(self.runtime.name)
            check_root(self.runtime)
            plan, states = self._schedule(context)
        except (PacelineError, ValueError) as error:
            if isinstance(error, RuntimeUnavailableError):
                raise
            raise AirflowFailException(str(error)) from error
        for assignment in plan.assignments:
            self.log.info(
                "%s trains on %d samples in batches of %d: %.1f s per epoch",
                assignment.worker,
                assignment.samples,
                assignment.batch_size,
                assignment.epoch_s,
            )
        for name, reason in plan.excluded.items():
            self.log.info("%s is excluded: %s", name, reason)
        context["ti"].xcom_push(key=SCHEDULE_XCOM, value=True)
        return plan.to_result(states).to_json()

    def _schedule(self, context: Context) -> tuple[Plan, dict[str, State]]:
        self.log.info("Reading the profiles of %s", ", ".join(self.fleet.kinds))
        require("worker", "numpy", "scipy", "sklearn")
        from paceline import schedule
        from paceline.profiles import NoProfileError, ProfileEstimates
        from paceline.profiles.store import ProfileStore

        store = ProfileStore(storage_path(self.profiles))
        profiles = {kind: store.load(kind) for kind in self.fleet.kinds}
        missing = [kind for kind, profile in profiles.items() if profile is None]
        if missing:
            raise NoProfileError(
                f"profiles: {self.profiles} has no profile of {', '.join(missing)}; create it with a ProfileOperator"
            )
        measured = {kind: one for kind, one in profiles.items() if one is not None}
        self._check_sizes(measured)
        states, unreachable = self._measure_load(context)
        reachable = [worker for worker in self.fleet.machines if worker.name in states]
        candidates = [self._candidate(worker, states[worker.name]) for worker in reachable]
        if not candidates:
            raise RuntimeUnavailableError("no machine responds: " + "; ".join(unreachable.values()))
        server = states.get(self.fleet.parameter_server.name)
        if server is None:
            raise RuntimeUnavailableError(unreachable[self.fleet.parameter_server.name])
        self.log.info("Choosing among %d machines with the scheduler %r", len(candidates), self.scheduler)
        problem = schedule.Problem(samples=self.samples, candidates=candidates, server=server, epochs=self.epochs)
        choose: Callable[..., Plan] = {
            "default": schedule.schedule,
            "deep_edge": schedule.deep_edge,
            "fair": schedule.fair,
        }[self.scheduler]
        plan = choose(problem, ProfileEstimates(measured))
        return schedule.Plan(plan.assignments, {**plan.excluded, **unreachable}, plan.total_s), states

    def _check_sizes(self, profiles: Mapping[str, DeviceProfile]) -> None:
        """Raise InvalidInputError for a machine of another size than the one on which its profile was measured."""
        for kind, profile in profiles.items():
            self.log.info("The profile of %s was measured at %s", kind, profile.origin.measured_at)
        for machine in self.fleet.machines:
            profile = profiles[machine.kind]
            different = profile.differences(cores=machine.cores, memory_gib=machine.memory_gib, gpus=machine.gpus)
            for name, (measured, current) in different.items():
                accepted = (
                    f"{measured:g}, as measured for the profile of {machine.kind} at {profile.origin.measured_at}: "
                    "measure it again with a ProfileOperator, or give a machine of another size another kind"
                )
                raise InvalidInputError(f"fleet.machines.{machine.name}.{name}", current, accepted)

    def on_kill(self) -> None:
        """Remove what measures the machines."""
        self._gauges.stop()

    def _measure_load(self, context: Context) -> tuple[dict[str, State], dict[str, str]]:
        """Return the load of each reachable machine, and the error of each unreachable machine."""
        machines = {one.name: one for one in self.fleet.all_machines}
        self.log.info("Measuring the load of %d machines for %g s", len(machines), self.measure_s)
        states: dict[str, State] = {}
        unreachable: dict[str, str] = {}
        with ThreadPoolExecutor(min(len(machines), _MAX_PARALLEL)) as pool:
            for name, state in zip(machines, pool.map(partial(self._load_of, context), machines.values()), strict=True):
                if isinstance(state, str):
                    unreachable[name] = state
                    self.log.warning("%s: %s", name, state)
                else:
                    states[name] = state
                    memory = "" if machines[name].is_node else f", {100 * state.memory:.0f} % memory"
                    self.log.info("%s uses %.0f %% CPU%s", name, 100 * state.cpu, memory)
        return states, unreachable

    def _load_of(self, context: Context, machine: Machine) -> State | str:
        """Return the load of a machine, or why it cannot be measured."""
        from paceline.schedule import State

        parts = (*task_labels(context).values(), machine.name)
        make = partial(
            self.runtime.gauge,
            self.fleet,
            machine,
            name=unique_name(f"{self.dag_id}-{self.task_id}-{machine.name}", *parts),
            labels=job_labels(context),
            apart=unique_name(f"{self.dag_id}-{self.task_id}", *parts[:-1]) if machine in self.fleet.machines else None,
        )
        try:
            with self._gauges.opened(make) as gauge:
                before = gauge.read()
                time.sleep(self.measure_s)
                after = gauge.read()
        except RuntimeUnavailableError as error:
            return f"its {'node' if machine.is_node else 'engine'} does not respond: {error}"
        passed_s = after.measured_s - before.measured_s
        cores = (after.cpu_s - before.cpu_s) / passed_s if passed_s > 0 else 0.0
        memory = after.memory_bytes / (machine.memory_gib * 2**30)
        return State(cpu=min(max(cores / machine.cores, 0.0), 1.0), memory=min(memory, 1.0))

    def _candidate(self, worker: Machine, state: State) -> Any:
        from paceline.schedule import Candidate

        has_data = self.data is not None and self.data in worker.data
        # The link delays each transfer once, not each sample.
        transfer_s = 0.0 if has_data else worker.link.transfer_s(self.sample_bytes) - worker.link.transfer_s(0)
        return Candidate(
            worker.name,
            worker.kind,
            state,
            {app.name: app.latency_ms / 1000 for app in worker.background},
            transfer_s,
            self.initialize_s + (0.0 if has_data else worker.link.transfer_s(0)),
        )
