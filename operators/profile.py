"""``ProfileOperator``: measures a training job and its neighbours on each kind of device."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from paceline.airflow.arguments import local_copies, number, path_or_url, positive_integer, read_fields, sequence
from paceline.airflow.places import storage_path
from paceline.airflow.values import Reader, text
from paceline.contract import ProfileResult
from paceline.errors import InvalidInputError, PacelineError, RuntimeUnavailableError
from paceline.extras import require
from paceline.fleet import BackgroundApp, Fleet, Machine
from paceline.fleet.faults import checked_fleet, measuring_faults, raise_first, training_faults
from paceline.runtime.temporary import TemporaryFolder

from ._gauges import Gauges
from ._identity import job_labels
from ._job import JobOperator
from ._team import fleet_runtime, machine_arguments

if TYPE_CHECKING:
    import pandas as pd
    from airflow.sdk import Context

    from paceline.airflow.runtimes import RuntimeSettings
    from paceline.contract import FunctionFit
    from paceline.profiles import DeviceProfile, Learned
    from paceline.profiles.bench import Bench
    from paceline.profiles.measured_training import TrainingSpec
    from paceline.profiles.store import ProfileStore
    from paceline.runtime import SupportsTeams

NEIGHBOUR_IMAGE = "paceline-neighbour:latest"
_MAX_MACHINES = 3  # maximum number of machines that train together in a measurement, unless the kinds need more
_KILL_S = 4.0  # Airflow kills a task 5 s after its signal


class ProfileOperator(JobOperator):
    """A task that profiles each kind of device whose profile is missing, outdated or unreadable.

    The task runs the training script on machines of the fleet, alongside the machines' background applications and
    under artificial load. From the measurements, the task learns the functions of Deep-Edge: the time per sample and
    per update, the machine's load, and the applications' latency.

    Parameters
    ----------
    fleet:
        The machines, see :func:`paceline.fleet.load`. Background applications need an ``image`` and a ``script``.
    profiles:
        Path or object storage URL of the profiles. (templated)
    points:
        Number of measurements, at least 8 for one machine and 16 for several. (templated)
    measure_s:
        Seconds to measure each point during training, after half that time without training. The total time per point
        is about two seconds longer.
    batch_sizes:
        Batch sizes from which a schedule may choose.
    max_age:
        Maximum age of a valid profile.
    neighbour_image:
        Image with stress-ng, which generates the artificial load.
    **kwargs:
        Arguments of the training job, as for :class:`~paceline.operators.DeadlineTrainingOperator`: ``script``,
        ``arguments``, ``files``, ``inputs``, ``environment`` and ``runtime``, of whose settings ``image``, ``pull``,
        ``docker_conn_id``, ``user`` and ``allow_root`` apply. The fleet determines engine, memory, GPUs and network.
        For a fleet of nodes, it is :class:`~paceline.operators.Kubernetes`, whose ``memory`` is that of each pod.

    Returns
    -------
    dict
        The JSON form of a :class:`~paceline.contract.ProfileResult`: the reason for each new or kept profile, by kind
        of device, and the errors of the functions of the new profiles in percent, as in the paper's Table I.

    Examples
    --------
    >>> from paceline.fleet import Fleet, Machine
    >>> from paceline.operators import ProfileOperator
    >>> gate = Machine(name="gate-1", kind="nano", cores=4, memory_gib=4)
    >>> profile = ProfileOperator(
    ...     task_id="profile",
    ...     fleet=Fleet(machines=[gate], parameter_server=gate),
    ...     profiles="profiles",
    ...     script="train.py",
    ... )
    """

    template_fields: Sequence[str] = (*JobOperator.template_fields, "profiles", "points")
    readers: ClassVar[Mapping[str, Reader]] = {
        **JobOperator.readers,
        "runtime": fleet_runtime,
        "profiles": path_or_url,
        "points": positive_integer,
    }
    on_fleet = True
    ui_color = "#ffe9d6"

    def __init__(
        self,
        *,
        fleet: Fleet,
        profiles: str,
        points: int | str = 60,
        measure_s: float = 4.0,
        batch_sizes: Sequence[int] = (4, 8, 16, 32),
        max_age: timedelta = timedelta(days=90),
        neighbour_image: str = NEIGHBOUR_IMAGE,
        **kwargs: Any,
    ) -> None:
        super().__init__(**machine_arguments(kwargs, checked_fleet(fleet)))
        raise_first((*training_faults(fleet), *measuring_faults(fleet)))
        self.fleet = fleet
        self.profiles = profiles
        self.points: Any = points
        self.measure_s = _seconds("measure_s", measure_s)
        self.batch_sizes = _batch_sizes("batch_sizes", batch_sizes)
        self.max_age = _max_age("max_age", max_age)
        self.neighbour_image = text("neighbour_image", neighbour_image, "the name of an image")
        self._bench: Bench | None = None
        self._gauges = Gauges()
        self._killed = threading.Event()
        read_fields(self, self.readers, rendered=False)

    def _check_script(self) -> None:
        super()._check_script()
        if self.script is None:
            raise InvalidInputError("script", self.script, "a Python file with the training code to measure")

    def execute(self, context: Context) -> dict[str, Any]:
        """Measure each kind of device that has no valid profile, and store the new profiles."""
        try:
            require("worker", "numpy", "pandas", "scipy", "sklearn")
            from paceline.profiles.store import ProfileStore

            self.read_templates(context)
            with TemporaryFolder() as scratch:
                training = self._training_spec(scratch)
                store = ProfileStore(storage_path(self.profiles))
                stale, kept = self._check_profiles(store, training)
                for kind, reason in stale.items():
                    self.log.info("Profiling %s: %s", kind, reason)
                report: list[FunctionFit] = []
                if stale:
                    measured = self._measure(context, training, list(stale))
                    for kind in stale:
                        profile = self._fit_profile(kind, measured, training)
                        store.save(profile)
                        report += profile.report()
        except RuntimeUnavailableError as error:
            raise AirflowException(self.describe(error)) from error
        except (PacelineError, ValueError) as error:
            raise AirflowFailException(self.describe(error)) from error
        return ProfileResult(profiled=stale, kept=kept, report=report).to_json()

    def on_kill(self) -> None:
        """Stop and remove all jobs."""
        self._killed.set()
        ends = [self._gauges.stop, *([self._bench.close] if self._bench is not None else [])]
        # Close in threads, because the interrupted code may hold locks that `close` needs.
        endings = [threading.Thread(target=end, daemon=True) for end in ends]
        for ending in endings:
            ending.start()
        give_up_s = time.monotonic() + _KILL_S
        for ending in endings:
            ending.join(max(give_up_s - time.monotonic(), 0.0))

    def _training_spec(self, scratch: Path) -> TrainingSpec:
        from paceline.profiles.measured_training import TrainingSpec
        from paceline.runtime import JobSpec

        container = self.runtime.extend(JobSpec(name=self.task_id, command=[], devices=1.0))
        # A fleet's file determines the memory of containers, but not of pods, which share their node with others.
        of_machine = "memory" in self.runtime.machine_fields
        return TrainingSpec(
            script=self._local_file("script", self.script),
            image=container.image or "",
            arguments=[str(argument) for argument in self.arguments],
            files={name: self._local_file(f"files[{name!r}]", path) for name, path in self.files.items()},
            environment={name: str(value) for name, value in self.environment.items()} | self._private_environment,
            inputs=local_copies("inputs", self.inputs, scratch),
            user=container.user,
            allow_root=container.allow_root,
            memory_bytes=None if of_machine else container.memory_bytes,
        )

    def _fingerprint(self, training: TrainingSpec, kind: str) -> str:
        """Return a digest that identifies the training job and its neighbours on a kind of device."""
        apps = {app.name: app for machine in self._machines_of(kind) for app in machine.background}
        files = {"": training.script, **training.files}
        files |= {f"background {name}": self._app_script(app) for name, app in apps.items() if app.script is not None}
        digest = hashlib.sha256()
        for name in sorted(files):
            digest.update(f"{name}\0{hashlib.sha256(files[name].read_bytes()).hexdigest()}\0".encode())
        images = {name: app.image for name, app in apps.items()}
        # Include only the names of the inputs, because the data differs in each retraining.
        inputs = sorted(self.inputs)
        environment = {name: str(value) for name, value in self.environment.items()}
        definition = [training.image, list(training.arguments), environment, inputs, self.batch_sizes, images]
        digest.update(json.dumps(definition, sort_keys=True).encode())
        return digest.hexdigest()[:16]

    def _app_script(self, app: BackgroundApp) -> Path:
        return self._local_file(f"background.{app.name}.script", str(app.script))

    def _check_profiles(self, store: ProfileStore, training: TrainingSpec) -> tuple[dict[str, str], dict[str, str]]:
        stale, kept = {}, {}
        for kind in self.fleet.kinds:
            try:
                profile = store.load(kind)
            except InvalidInputError as error:  # damaged, or of a version of Paceline with another format
                stale[kind] = f"it has a profile that cannot be read ({error})"
                continue
            machine = self._machines_of(kind)[0]
            if profile is None:
                stale[kind] = "it has no profile"
                continue
            reason = profile.stale_reason(
                datetime.now(timezone.utc),
                training=self._fingerprint(training, kind),
                cores=machine.cores,
                memory_gib=machine.memory_gib,
                gpus=machine.gpus,
                max_age=self.max_age,
            )
            if reason is None:
                kept[kind] = f"measured at {profile.origin.measured_at}"
            else:
                stale[kind] = reason
        return stale, kept

    def _measure(self, context: Context, training: TrainingSpec, kinds: Sequence[str]) -> pd.DataFrame:
        from paceline.profiles.bench import Bench, Timing
        from paceline.profiles.survey import Survey, check_points, default_axes

        machines, server = self._select_machines(kinds), self._with_absolute_scripts(self.fleet.parameter_server)
        check_points(self.points, len(machines))
        if server.name in {machine.name for machine in machines}:
            server = server.model_copy(update={"name": f"{server.name}-server", "background": ()})
        labels = job_labels(context)  # unique among the Airflow installations that use these engines
        settings = {one.name: self._settings_of(one) for one in (*machines, server)}
        runtimes = {name: cast("SupportsTeams", one.open()) for name, one in settings.items()}
        for runtime in runtimes.values():
            runtime.remove_all(labels)  # left behind by a killed try
        done = 0

        def log_rows(rows: list[dict[str, Any]]) -> None:
            nonlocal done
            done += 1
            if self._killed.is_set():
                raise PacelineError("the task was stopped")
            times = ", ".join(f"{row['machine']} {1000 * row['compute_s']:.2g} ms per sample" for row in rows)
            self.log.info("Point %d of %d: %s", done, self.points, times)

        with contextlib.ExitStack() as stack:
            gauges = {}
            for one in (*machines, server):
                name = self.job_name(context, f"-usage-{one.name}")
                apart = self.job_name(context) if one is not server else None  # the server may share a node
                make = partial(
                    settings[one.name].gauge, self.fleet, one, name=name, labels={**self.labels, **labels}, apart=apart
                )
                gauges[one.name] = stack.enter_context(self._gauges.opened(make))
            machines = [gauges[one.name].machine for one in machines]
            self._bench = Bench(
                machines,
                gauges[server.name].machine,
                training,
                runtimes,
                gauges,
                image=self.neighbour_image,
                timing=Timing(before_s=self.measure_s / 2, training_s=self.measure_s),
                labels={**self.labels, **labels},
            )
            # A cluster reserves the memory of each pod, so others do not affect it.
            axes = default_axes(len(machines), self.batch_sizes, fill_memory=not self.fleet.is_of_nodes)
            with self._bench as bench:
                return Survey(bench, machines, axes, on_rows=log_rows).run(self.points)

    def _settings_of(self, machine: Machine) -> RuntimeSettings:
        settings: RuntimeSettings = self.runtime.on_machine(self.fleet, machine, gpus=machine.gpus)
        return settings

    def _fit_profile(self, kind: str, measured: pd.DataFrame, training: TrainingSpec) -> DeviceProfile:
        from paceline.profiles import DeviceProfile, Origin

        machine = self._machines_of(kind)[0]
        origin = Origin(
            training=self._fingerprint(training, kind),
            cores=machine.cores,
            memory_gib=machine.memory_gib,
            gpus=machine.gpus,
            measured_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        )
        apps = sorted({app.name for one in self._machines_of(kind) for app in one.background})
        rows = measured[measured["kind"] == kind]

        def log_learned(one: Learned) -> None:
            quality = one.mape_pct, one.points, one.regression
            self.log.info("%s %s: error %.1f %% on %d points, %s", kind, one.function.name, *quality)

        self.log.info("Learning the functions of %s from %d points", kind, len(rows))
        return DeviceProfile.fit(kind, rows, origin, apps=apps, on_learned=log_learned)

    def _select_machines(self, kinds: Sequence[str]) -> list[Machine]:
        """Return the machines for the measurement.

        First choose machines until each given kind and all its applications are covered. Then add machines up to
        ``_MAX_MACHINES``: machines of these kinds, then machines of other kinds whose applications all have scripts.
        """
        chosen: dict[str, Machine] = {}
        for kind in kinds:
            of_kind = self._machines_of(kind)
            chosen[of_kind[0].name] = of_kind[0]
            for app in {app.name for machine in of_kind for app in machine.background}:
                hosts = [one for one in of_kind if app in {other.name for other in one.background}]
                if not any(one.name in chosen for one in hosts):
                    chosen[hosts[0].name] = hosts[0]
        others = [machine for machine in self.fleet.machines if machine.name not in chosen]
        others = [one for one in others if one.kind in kinds or all(app.script for app in one.background)]
        others.sort(key=lambda machine: machine.kind not in kinds)
        picked = [*chosen.values(), *others[: max(_MAX_MACHINES - len(chosen), 0)]]
        return [self._with_absolute_scripts(machine) for machine in picked]

    def _with_absolute_scripts(self, machine: Machine) -> Machine:
        """Return a copy of the machine with absolute script paths. Resolve relative paths from the DAG's folder."""
        apps = tuple(
            app.model_copy(update={"script": str(self._app_script(app))}) if app.script is not None else app
            for app in machine.background
        )
        return machine.model_copy(update={"background": apps})

    def _machines_of(self, kind: str) -> list[Machine]:
        return [machine for machine in self.fleet.machines if machine.kind == kind]


def _seconds(field: str, value: object) -> float:
    accepted = "a number of seconds greater than 0"
    amount = number(field, value, accepted)
    if amount <= 0:
        raise InvalidInputError(field, value, accepted)
    return amount


def _batch_sizes(field: str, value: object) -> list[int]:
    accepted = "different whole numbers of at least 1, such as (4, 8)"
    try:
        sizes = [positive_integer(field, size) for size in sequence(field, value)]
    except InvalidInputError:
        sizes = []
    if not sizes or len(set(sizes)) < len(sizes):
        raise InvalidInputError(field, value, accepted)
    return sizes


def _max_age(field: str, value: object) -> timedelta:
    if not isinstance(value, timedelta) or value <= timedelta(0):
        raise InvalidInputError(field, value, "a timedelta greater than 0, such as timedelta(days=90)")
    return value
