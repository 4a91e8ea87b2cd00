"""A fleet and its workers, as they are described in a file."""

from __future__ import annotations

from ipaddress import IPv4Address
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

_Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.-]*$", max_length=63)]
_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Described(BaseModel):
    """No unknown keys: a misspelt one would be a setting that has no effect."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class BackgroundApp(_Described):
    """An application that runs on a worker besides, and must stay quick while a training runs there.

    Parameters
    ----------
    name:
        Of the application, the same in the profiles.
    latency_ms:
        Its objective, ``delta`` of constraint (4) in Deep-Edge: one execution may take so long.
    image, script:
        How it is run while a device is profiled: a script that says ``report(execution_s=...)`` after each execution
        (``paceline.train.report``), and an image with what the script needs. Not needed where a profile is there.
    """

    name: _Name
    latency_ms: _Positive
    image: str | None = None
    script: str | None = None


class Link(_Described):
    """The connection from a worker to where the data and the parameter server are."""

    mbit_per_s: _Positive = 1000.0
    delay_ms: _NotNegative = 0.0

    def transfer_s(self, size_bytes: float) -> float:
        """Seconds to carry so many bytes.

        >>> round(Link(mbit_per_s=100, delay_ms=5).transfer_s(1_000_000), 3)
        0.085
        """
        return 8e-6 * size_bytes / self.mbit_per_s + 1e-3 * self.delay_ms


class Machine(_Described):
    """A machine that may train.

    Parameters
    ----------
    name:
        Unique in the fleet.
    kind:
        The kind of device. Machines of a kind behave alike: they share their profiles.
    tier:
        ``"edge"`` or ``"cloud"``.
    cores, gpus, memory_gib:
        What it has.
    engine_conn_id:
        Airflow connection to its engine; without one, the engine of the machine that asks.
    queue, executor:
        Queue of the edge worker that runs its tasks, beside its engine, and Airflow's executor for it where there are
        several; without a queue they run centrally.
    address:
        IPv4 address at which the machines of other engines reach this one while it is the parameter server, with the
        port that is opened there for as long as a training runs: ``10.0.0.5``, or ``10.0.0.5:29500``.
    cgroup_parent:
        Control group that its containers are put into; for devices that are parts of one machine.
    background:
        What runs there besides.
    link:
        Its connection to the others.
    data:
        Names of the data sets that it has already: nothing has to be carried there for them.
    price_per_kwh, idle_watts, busy_watts:
        What its energy costs, and how much of it it takes.

    Examples
    --------
    >>> worker = Machine(name="gate-1", kind="nano", tier="edge", cores=4, memory_gib=4)
    >>> worker.gpus, worker.link.mbit_per_s, worker.background
    (0, 1000.0, ())
    """

    name: _Name
    kind: _Name
    tier: Literal["edge", "cloud"] = "edge"
    cores: _Positive
    gpus: Annotated[int, Field(ge=0)] = 0
    memory_gib: _Positive
    engine_conn_id: Annotated[str, Field(min_length=1)] | None = None
    queue: str | None = None
    executor: str | None = None
    address: str | None = None
    cgroup_parent: str | None = None
    background: tuple[BackgroundApp, ...] = ()
    link: Link = Link()
    data: tuple[str, ...] = ()
    price_per_kwh: _NotNegative = 0.0
    idle_watts: _NotNegative = 0.0
    busy_watts: _NotNegative = 0.0

    @property
    def engine(self) -> str:
        """What tells its engine from others: its connection, and where it is asked from."""
        # One connection may name the local socket of several sites.
        return f"{self.engine_conn_id or ''} {self.queue or ''}"

    @field_validator("address")
    @classmethod
    def _one_address(cls, value: str | None) -> str | None:
        if value is not None:
            host, _, port = value.partition(":")
            if IPv4Address(host).is_unspecified:
                raise ValueError("it would be open on every network of the machine: name one address of it")
            if port and not (port.isdigit() and 0 < int(port) < 2**16):
                raise ValueError(f"{port!r} is no port")
        return value

    @model_validator(mode="after")
    def _apps_differ(self) -> Machine:
        repeated = _repeated([app.name for app in self.background])
        if repeated:
            raise ValueError(f"two applications are called {repeated!r}")
        if self.busy_watts < self.idle_watts:
            raise ValueError(f"busy_watts is {self.busy_watts:g}, less than idle_watts = {self.idle_watts:g}")
        return self


class Fleet(_Described):
    """All machines of a training.

    Parameters
    ----------
    machines:
        Those that may train.
    parameter_server:
        The machine that keeps the parameters; it may train as well.
    key_conn_id:
        Airflow connection whose password parameter server and workers prove to each other that they have; needed
        where machines have several engines.
    """

    machines: Annotated[tuple[Machine, ...], Field(min_length=1)]
    parameter_server: Machine
    key_conn_id: Annotated[str, Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _names_differ(self) -> Fleet:
        repeated = _repeated([machine.name for machine in self.machines])
        if repeated:
            raise ValueError(f"two machines are called {repeated!r}")
        return self

    @property
    def elsewhere(self) -> list[str]:
        """Return the machines that have another engine than the parameter server."""
        return [machine.name for machine in self.machines if machine.engine != self.parameter_server.engine]

    @property
    def kinds(self) -> list[str]:
        """The kinds of device among the workers, sorted."""
        return sorted({machine.kind for machine in self.machines})

    def machine(self, name: str) -> Machine:
        """Return the machine of that name. Raises ``KeyError`` if there is none."""
        return next((machine for machine in self.machines if machine.name == name), None) or _missing(name)


def _missing(name: str) -> Machine:
    raise KeyError(name)


def _repeated(names: list[str]) -> str | None:
    return next((name for name in names if names.count(name) > 1), None)
