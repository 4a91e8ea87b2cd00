"""Models of a fleet and its machines, with the fields of the fleet's file."""

from __future__ import annotations

from ipaddress import IPv4Address
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from paceline.runtime import DockerOptions, KubernetesOptions

_Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.-]*$", max_length=63)]
_Text = Annotated[str, Field(min_length=1)]
_NodeName = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$", max_length=253)]
_LabelName = Annotated[str, Field(pattern=r"^([a-z0-9.-]+/)?[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?$")]
_LabelValue = Annotated[str, Field(pattern=r"^([A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?)?$", max_length=63)]
_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _FleetModel(BaseModel):
    """Base class of the models; unknown keys are errors, because a misspelt key would otherwise be ignored."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class BackgroundApp(_FleetModel):
    """A background application of a machine, whose latency must stay within a limit during training.

    Parameters
    ----------
    name:
        Name of the application, also in profiles.
    latency_ms:
        Maximum duration of one execution: ``delta`` of constraint (4) in Deep-Edge.
    image, script:
        Image and script to run the application during profiling. The script calls ``report(execution_s=...)``
        (``paceline.train.report``) after each execution. Neither is necessary if a profile exists.
    """

    name: _Name
    latency_ms: _Positive
    image: str | None = None
    script: str | None = None


class Link(_FleetModel):
    """The network link from a machine to the data and the parameter server."""

    mbit_per_s: _Positive = 1000.0
    delay_ms: _NonNegative = 0.0

    def transfer_s(self, size_bytes: float) -> float:
        """Return the seconds to transfer ``size_bytes``.

        >>> round(Link(mbit_per_s=100, delay_ms=5).transfer_s(1_000_000), 3)
        0.085
        """
        return 8e-6 * size_bytes / self.mbit_per_s + 1e-3 * self.delay_ms


class Machine(_FleetModel):
    """A machine that may take part in training.

    Parameters
    ----------
    name:
        Unique name in the fleet.
    kind:
        Kind of device; machines of the same kind share their profiles.
    tier:
        ``"edge"`` or ``"cloud"``.
    cores, gpus, memory_gib:
        Resources of the machine.
    engine_conn_id:
        Airflow connection to the machine's engine; by default the local engine of the task or command.
    node, node_selector:
        For a machine that is a node of a Kubernetes cluster: the node's name, or labels of the nodes of a pool. Each
        machine of a pool is another node. The settings of an engine then have no meaning.
    kubernetes_conn_id:
        Airflow connection to the node's cluster; by default that of the task's runtime.
    queue, executor:
        Queue of the edge worker that runs the machine's tasks next to its engine, and Airflow's executor for this queue
        if there are several. Without a queue, the tasks run centrally.
    address:
        IPv4 address at which machines with other engines reach the parameter server on this machine, optionally with
        the port that is open during training: ``10.0.0.5`` or ``10.0.0.5:29500``. Of a node: that of a Service or load
        balancer that leads to its pod, for nodes of other clusters.
    cgroup_parent:
        Control group of the machine's containers, if several emulated devices share one engine.
    background:
        The machine's background applications.
    link:
        The machine's network link to all other machines.
    data:
        Names of the data sets stored on the machine, which need no transfer.

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
    engine_conn_id: _Text | None = None
    node: _NodeName | None = None
    node_selector: Annotated[dict[_LabelName, _LabelValue], Field(min_length=1)] | None = None
    kubernetes_conn_id: _Text | None = None
    queue: _Text | None = None
    executor: _Text | None = None
    address: str | None = None
    cgroup_parent: _Text | None = None
    background: tuple[BackgroundApp, ...] = ()
    link: Link = Link()
    data: tuple[str, ...] = ()

    @property
    def is_node(self) -> bool:
        """Whether the machine is a node of a cluster."""
        return self.node is not None or self.node_selector is not None

    @property
    def engine(self) -> str:
        """Identity of the machine's engine: connection and queue. The engine of a node is its cluster."""
        if self.is_node:
            return f"kubernetes {self.kubernetes_conn_id or ''}"
        # Sites may share a connection that names the local socket of each site.
        return f"{self.engine_conn_id or ''} {self.queue or ''}"

    def job_options(self, apart: str | None = None) -> DockerOptions | KubernetesOptions:
        """Return the settings of the jobs on the machine, for ``JobSpec.options``.

        ``apart``: name of a group of jobs; those on nodes of a pool are placed on different nodes.
        """
        if self.is_node:
            return KubernetesOptions(self.node, self.node_selector or {}, apart)
        return DockerOptions(cgroup_parent=self.cgroup_parent)

    @field_validator("address")
    @classmethod
    def _check_address(cls, value: str | None) -> str | None:
        if value is not None:
            host, colon, port = value.partition(":")
            try:
                unspecified = IPv4Address(host).is_unspecified
            except ValueError:
                raise ValueError(f"{host!r} is not an IPv4 address such as 192.0.2.2 or 192.0.2.2:29500") from None
            if unspecified:
                raise ValueError(f"{host} opens the port on every network of the machine: use a specific address")
            if colon and not (port.isdecimal() and 0 < int(port) < 2**16):
                raise ValueError(f"{port!r} is not a port from 1 to 65535")
        return value

    @model_validator(mode="after")
    def _check_node(self) -> Machine:
        if self.node is not None and self.node_selector is not None:
            raise ValueError("node and node_selector: give one of them")
        own = [name for name in ("engine_conn_id", "cgroup_parent") if getattr(self, name) is not None]
        if self.is_node and own:
            raise ValueError(f"{own[0]} is for machines with an engine, not for a node of a cluster")
        if self.kubernetes_conn_id is not None and not self.is_node:
            raise ValueError("kubernetes_conn_id is for a node of a cluster, with node or node_selector")
        return self

    @model_validator(mode="after")
    def _check_app_names(self) -> Machine:
        duplicate = _first_duplicate([app.name for app in self.background])
        if duplicate:
            raise ValueError(f"two applications have the name {duplicate!r}")
        return self


class Fleet(_FleetModel):
    """All machines that may take part in a training job.

    Parameters
    ----------
    machines:
        The machines that may run workers.
    parameter_server:
        The machine of the parameter server; it may also run a worker.
    key_conn_id:
        Airflow connection whose password is the shared secret of parameter server and workers; required if the machines
        have several engines.
    """

    machines: Annotated[tuple[Machine, ...], Field(min_length=1)]
    parameter_server: Machine
    key_conn_id: _Text | None = None

    @model_validator(mode="after")
    def _check_machine_names(self) -> Fleet:
        duplicate = _first_duplicate([machine.name for machine in self.machines])
        if duplicate:
            raise ValueError(f"two machines have the name {duplicate!r}")
        server = self.parameter_server
        if any(machine.name == server.name and machine != server for machine in self.machines):
            raise ValueError(f"the parameter server and a different machine have the name {server.name!r}")
        if len({machine.is_node for machine in self.all_machines}) > 1:
            names = ", ".join(sorted({machine.name for machine in self.all_machines if not machine.is_node}))
            raise ValueError(f"some machines are nodes of a cluster, and these are not: {names}")
        return self

    @property
    def all_machines(self) -> tuple[Machine, ...]:
        """The machines and that of the parameter server, each once."""
        return tuple({one.name: one for one in (*self.machines, self.parameter_server)}.values())

    @property
    def is_of_nodes(self) -> bool:
        """Whether the machines are nodes of a cluster."""
        return self.parameter_server.is_node

    @property
    def remote_machines(self) -> list[str]:
        """Names of the machines whose engine differs from that of the parameter server."""
        return [machine.name for machine in self.machines if machine.engine != self.parameter_server.engine]

    def engine_gpus(self, machine: Machine) -> int:
        """Return the number of GPUs of the machine's engine: those of all machines with this engine."""
        return sum(one.gpus for one in self.all_machines if one.engine == machine.engine)

    def other_control_groups(self, machine: Machine) -> set[str]:
        """Return the control groups of the other machines with this machine's engine."""
        others = (one for one in self.all_machines if one.engine == machine.engine)
        return {one.cgroup_parent for one in others if one.cgroup_parent is not None} - {machine.cgroup_parent}

    @property
    def kinds(self) -> list[str]:
        """The device kinds in the fleet, sorted."""
        return sorted({machine.kind for machine in self.machines})

    def machine(self, name: str) -> Machine:
        """Return the machine with this name; raise ``KeyError`` if there is none."""
        return next((machine for machine in self.machines if machine.name == name), None) or _raise_unknown_machine(
            name
        )


def _raise_unknown_machine(name: str) -> Machine:
    raise KeyError(name)


def _first_duplicate(names: list[str]) -> str | None:
    return next((name for name in names if names.count(name) > 1), None)
