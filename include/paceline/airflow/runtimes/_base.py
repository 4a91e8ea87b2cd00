"""``RuntimeSettings``: base of the values that ``runtime=`` of an operator takes, such as ``Docker(image=...)``.

An operator knows its runtime only through this class, so a package may add a runtime of its own.
"""

from __future__ import annotations

import copy
import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from airflow.sdk.definitions._internal.mixins import ResolveMixin
from airflow.sdk.definitions.xcom_arg import XComArg

from paceline.airflow.values import NOTHING, Reader, is_template, memory_bytes, text
from paceline.errors import InvalidInputError
from paceline.runtime.checks import check_max_processes

if TYPE_CHECKING:
    from airflow.sdk import Context

    from paceline.fleet import Fleet, Machine
    from paceline.fleet.usage import MachineGauge
    from paceline.runtime import JobSpec, Runtime

Self = TypeVar("Self", bound="RuntimeSettings")


class RuntimeSettings(ResolveMixin, ABC):
    """The settings of one runtime. A subclass is a frozen dataclass whose fields all have defaults.

    The values of ``template_fields`` may be templates, XComArgs, DAG parameters or functions, which Airflow renders
    when the task runs. All other values are checked when the settings are created, so when Airflow parses the DAG.

    Attributes
    ----------
    name:
        Name of the runtime, the same as that of its entry point and of the :class:`paceline.runtime.Runtime`.
    template_fields:
        Names of the templated fields.
    readers:
        Mapping of fields to readers: ``read(name, value)`` returns the value, or raises InvalidInputError.
    shares_gpus:
        Whether the allocation of a job may be a share of the time of its GPUs; see
        :class:`paceline.runtime.JobSpec`, and ``$PACELINE_GPU_TURNS`` in ``paceline.train.job``.
    forms_teams:
        Whether ``open`` returns a :class:`paceline.runtime.SupportsTeams`, which ``team`` needs.
    machine_fields:
        Names of the fields that a fleet's file determines for each machine, see ``on_machine``; empty if the runtime
        cannot place jobs on the machines of a fleet.
    loses_files:
        Whether a job may lose its files while Airflow runs it, for example with its node. ``checkpoint_to`` then copies
        its checkpoints by default.

    Examples
    --------
    A package with these settings declares the entry point ``batch = "their_package:Batch"`` in the group
    ``paceline.runtimes``. Its users write ``runtime="batch"`` or ``runtime=Batch(queue="night")``.

    >>> import dataclasses
    >>> from paceline.airflow.values import text
    >>> @dataclasses.dataclass(frozen=True, kw_only=True)
    ... class Batch(RuntimeSettings):
    ...     name = "batch"
    ...     template_fields = ("queue",)
    ...     readers = {"queue": text}
    ...     queue: str = "default"
    ...
    ...     def open(self):
    ...         return BatchRuntime(self.queue)
    >>> Batch(queue="")
    Traceback (most recent call last):
    paceline.errors.InvalidInputError: runtime.queue: got '', expected text
    """

    name: ClassVar[str]
    template_fields: ClassVar[Sequence[str]] = ()
    readers: ClassVar[Mapping[str, Reader]] = {}
    shares_gpus: ClassVar[bool] = False
    forms_teams: ClassVar[bool] = False
    machine_fields: ClassVar[Sequence[str]] = ()
    loses_files: ClassVar[bool] = False

    @property
    def gpus(self) -> float:
        """Number of GPUs for the job alone, or a part of one: 0, unless a subclass has a field with this name."""
        return 0

    @property
    def image(self) -> str | None:
        """The job's container image: ``None``, unless a subclass has a field with this name."""
        return None

    @property
    def network(self) -> str | None:
        """The network that the job joins, not in a team: ``None``, unless a subclass has a field with this name."""
        return None

    @property
    def allow_root(self) -> bool:
        """Whether the job may run as root: ``False``, unless a subclass has a field with this name."""
        return False

    @property
    def names_engine(self) -> bool:
        """Whether these settings reach the same jobs from all machines of Airflow: ``False``, unless a subclass can."""
        return False

    @abstractmethod
    def open(self) -> Runtime:
        """Return the runtime for the jobs of one task. Connect when the runtime is used, not here."""

    def extend(self, spec: JobSpec) -> JobSpec:
        """Return the specification of a job with what these settings add to it, such as limits."""
        return spec

    def on_machine(self: Self, fleet: Fleet, machine: Machine, *, gpus: int) -> Self:
        """Return the settings for a task's jobs on a machine of a fleet, of whose GPUs the task uses ``gpus``.

        A runtime with ``machine_fields`` implements this method and ``gauge``. Raises InvalidInputError if these
        settings do not suit the machine, or already have other values of ``machine_fields``.
        """
        raise NotImplementedError

    def gauge(
        self, fleet: Fleet, machine: Machine, *, name: str, labels: Mapping[str, str], apart: str | None = None
    ) -> MachineGauge:
        """Return what measures the usage of a machine of a fleet, until it is closed.

        Parameters
        ----------
        fleet, machine:
            The fleet, and one of its machines.
        name, labels:
            Unique name and labels of a job, if the measurement needs one.
        apart:
            Name of a group of machines that have to be different ones, if they are chosen among several.

        Raises
        ------
        RuntimeUnavailableError
            If the machine does not respond.
        InvalidInputError
            If the runtime finds no such machine.
        """
        raise NotImplementedError

    def _with_machine(self: Self, values: Mapping[str, Any]) -> Self:
        """Return a copy with values from the fleet's file. Raises InvalidInputError for others than the defaults."""
        for field, value in values.items():
            if (given := getattr(self, field)) not in (getattr(type(self), field), value):
                accepted = "the default: the fleet's file determines it for each machine"
                raise InvalidInputError(f"runtime.{field}", given, accepted)
        return self._copy(values)

    def read(self, field: str, value: Any) -> Any:
        """Return the value of a field, or raise InvalidInputError. A templated field is read after rendering, too."""
        reader = self.readers.get(field)
        return value if reader is None else reader(f"runtime.{field}", value)

    def checked(self: Self) -> Self:
        """Return these settings after a check of the rendered fields. Raises InvalidInputError."""
        return self._copy({field: self.read(field, getattr(self, field)) for field in self.template_fields})

    def __post_init__(self) -> None:
        for field, value in self._values():
            if not (field in self.template_fields and is_template(value)):
                object.__setattr__(self, field, self.read(field, value))

    # --- Airflow --------------------------------------------------------------------------------------------------

    def iter_references(self) -> Iterable[tuple[Any, str]]:
        """Yield the XComs in the fields, from which Airflow derives dependencies."""
        return XComArg.iter_xcom_references([getattr(self, field) for field in self.template_fields])

    def resolve(self: Self, context: Context) -> Self:
        """Return these settings with rendered fields, which ``checked`` has not checked yet."""
        if not is_template(self):
            return self
        values = {field: getattr(self, field) for field in self.template_fields}
        rendered = SimpleNamespace(template_fields=self.template_fields, **values)
        context["task"].render_template(rendered, context)
        return self._copy({field: getattr(rendered, field) for field in self.template_fields})

    def serialize(self) -> dict[str, Any]:
        """Return the settings as Airflow stores and shows them."""
        return {"name": self.name, **dict(self._values())}

    def _values(self) -> list[tuple[str, Any]]:
        return [(field.name, getattr(self, field.name)) for field in dataclasses.fields(self)]  # type: ignore[arg-type]

    def _copy(self: Self, values: Mapping[str, Any]) -> Self:
        """Return a copy with rendered values. Their braces are literal; ``dataclasses.replace`` would see templates."""
        copied = copy.copy(self)
        for field, value in values.items():
            object.__setattr__(copied, field, value)
        return copied


def image(field: str, value: object) -> str:
    """Read the name of a container image."""
    return text(field, value, "the name of a container image")


def gpu_count(field: str, value: object) -> int:
    """Read a number of GPUs."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise InvalidInputError(field, value, "a whole number of GPUs, 0 for none")
    return value


def gpu_amount(field: str, value: object) -> float:
    """Read a number of GPUs, or a part of one."""
    if isinstance(value, float) and 0 < value < 1:
        return value
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise InvalidInputError(field, value, "a whole number of GPUs, 0 for none, or a part of one, such as 0.25")


def max_processes(field: str, value: object) -> object:
    """Read a maximum number of processes."""
    check_max_processes(value, field)
    return value


def size(field: str, value: object) -> object:
    """Read a limit on memory or disk space. The text remains text, as Airflow's pages show it."""
    memory_bytes(field, value)
    return None if value in NOTHING else value
