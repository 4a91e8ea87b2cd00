"""How the containers of one training find each other: on one engine in a network of their own, else at an address."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field, replace

from paceline.errors import InvalidInputError
from paceline.fleet.machine import Fleet, Machine
from paceline.runtime.base import JobSpec
from paceline.train.asynchronous.plan import PORT
from paceline.train.job import ENV_SERVER, ENV_SERVER_KEY, ENV_WORKER

_SERVER = "parameter-server"  # its name in the network


@dataclass(frozen=True)
class Rendezvous:
    """Where the workers of one training find its parameter server.

    Parameters
    ----------
    network:
        Name of the training's own network.
    server:
        The parameter server's machine.
    open:
        Whether machines with other engines take part: the server is then reached at its machine's ``address`` as well.
    secret:
        What both sides have to know where it is open. They prove it with a key made from it, another for each
        training.

    Raises
    ------
    InvalidInputError
        For an open one without an address or a secret.

    Examples
    --------
    >>> hall = Machine(name="hall", kind="server", cores=8, memory_gib=32, address="10.0.0.5")
    >>> gate = Machine(name="gate", kind="nano", cores=4, memory_gib=4, engine_conn_id="gate_docker")
    >>> meeting = Rendezvous("training-1", hall, open=True, secret="from a connection")
    >>> server = meeting.serve(JobSpec(name="server", command=["python"], devices=1))
    >>> server.published, server.way_out
    ({29500: ('10.0.0.5', 29500)}, True)
    >>> meeting.join(JobSpec(name="gate", command=["python"], devices=1), gate).environment["PACELINE_SERVER"]
    '10.0.0.5:29500'
    """

    network: str
    server: Machine
    open: bool = False
    secret: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        if self.open and self.server.address is None:
            accepted = "an address of it, at which the machines of other engines reach the parameter server"
            raise InvalidInputError(f"fleet.{self.server.name}.address", None, accepted)
        if self.open and not self.secret:
            accepted = "a connection whose password parameter server and workers prove to each other"
            raise InvalidInputError("fleet.key_conn_id", None, accepted)

    def serve(self, spec: JobSpec) -> JobSpec:
        """The parameter server's job, on its part of its machine, with its place in the network."""
        spec = replace(spec, own_network=self.network, alias=_SERVER, cgroup_parent=self.server.cgroup_parent)
        if not self.open:
            return spec
        environment = {**spec.environment, ENV_SERVER_KEY: self._key()}
        return replace(spec, way_out=True, published={PORT: self._address()}, environment=environment)

    def join(self, spec: JobSpec, worker: Machine) -> JobSpec:
        """A worker's job, on its part of its machine, told where the server is."""
        environment = {**spec.environment, ENV_WORKER: worker.name}
        if self.open:
            environment[ENV_SERVER_KEY] = self._key()
        spec = replace(spec, cgroup_parent=worker.cgroup_parent)
        if self.beside(worker):
            environment[ENV_SERVER] = f"{_SERVER}:{PORT}"
            return replace(spec, environment=environment, own_network=self.network)
        host, port = self._address()
        environment[ENV_SERVER] = f"{host}:{port}"
        # A network of its own: of several that come at the same time, two might make the same.
        own = f"{self.network}-{worker.name}"
        return replace(spec, environment=environment, own_network=own, alias=worker.name, way_out=True)

    def beside(self, worker: Machine) -> bool:
        """Whether a worker has the server's engine, and so finds it in the network."""
        return worker.engine == self.server.engine

    def _address(self) -> tuple[str, int]:
        host, _, port = (self.server.address or "").partition(":")
        return host, int(port or PORT)

    def _key(self) -> str:
        return hmac.new(self.secret.encode(), self.network.encode(), hashlib.sha256).hexdigest()


def check_open(fleet: Fleet) -> None:
    """Raise for machines of several engines whose parameter server could not be reached, or by anybody."""
    if fleet.elsewhere:
        Rendezvous("check", fleet.parameter_server, open=True, secret=fleet.key_conn_id or "")
