"""Connects a job's containers: through a private network on one engine, otherwise through the server's address."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field, replace

from paceline.fleet._machine import Machine
from paceline.fleet.faults import no_address, no_key
from paceline.runtime import JobSpec, TeamNetwork
from paceline.train.job import ENV_SERVER, ENV_SERVER_KEY, ENV_WORKER
from paceline.train.parameter_server.plan import PORT

LABEL_ROLE = "paceline.role"  # of a container: the server or a worker of a distributed training
SERVER, WORKER = "server", "worker"
_SERVER = "parameter-server"  # host name in the private network


@dataclass(frozen=True)
class Rendezvous:
    """Network settings with which the workers of a training job reach the parameter server.

    Parameters
    ----------
    network:
        Name of the job's private network.
    server:
        The machine of the parameter server.
    open:
        Whether machines with other engines take part; if so, the server also listens at its machine's ``address``.
    secret:
        Shared secret of server and workers, required if ``open``. The handshake uses a key that is derived from the
        secret and differs for each network.

    Raises
    ------
    InvalidInputError
        If ``open`` is set without an address or a secret.

    Examples
    --------
    >>> hall = Machine(name="hall", kind="server", cores=8, memory_gib=32, address="10.0.0.5")
    >>> gate = Machine(name="gate", kind="nano", cores=4, memory_gib=4, engine_conn_id="gate_docker")
    >>> rendezvous = Rendezvous("training-1", hall, open=True, secret="from a connection")
    >>> server = rendezvous.server_spec(JobSpec(name="server", command=["python"], devices=1))
    >>> server.team_network.published, server.team_network.external_access
    ({29500: ('10.0.0.5', 29500)}, True)
    >>> rendezvous.worker_spec(JobSpec(name="gate", command=["python"], devices=1), gate).environment["PACELINE_SERVER"]
    '10.0.0.5:29500'
    """

    network: str
    server: Machine
    open: bool = False
    secret: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        if self.open and self.server.address is None:
            raise no_address(self.server)
        if self.open and not self.secret:
            raise no_key()

    def server_spec(self, spec: JobSpec) -> JobSpec:
        """Return the parameter server's job specification with its place on the machine, and its network."""
        network, environment = TeamNetwork(self.network, _SERVER), dict(spec.environment)
        if self.open:
            network = replace(network, external_access=True, published={PORT: self._server_address()})
            environment[ENV_SERVER_KEY] = self._derived_key()
        labels = {**spec.labels, LABEL_ROLE: SERVER}
        options = self.server.job_options()
        return replace(spec, team_network=network, options=options, labels=labels, environment=environment)

    def worker_spec(self, spec: JobSpec, worker: Machine) -> JobSpec:
        """Return a worker's job specification with its place, its network and the server's address."""
        environment = {**spec.environment, ENV_WORKER: worker.name}
        if self.open:
            environment[ENV_SERVER_KEY] = self._derived_key()
        if self.shares_engine(worker):
            environment[ENV_SERVER] = f"{_SERVER}:{PORT}"
            network = TeamNetwork(self.network)
        else:
            host, port = self._server_address()
            environment[ENV_SERVER] = f"{host}:{port}"
            # Use a separate network, because workers that start at the same time might create the same network twice.
            network = TeamNetwork(f"{self.network}-{worker.name}", worker.name, external_access=True)
        labels = {**spec.labels, LABEL_ROLE: WORKER}
        options = worker.job_options(apart=self.network)
        return replace(spec, team_network=network, options=options, labels=labels, environment=environment)

    def shares_engine(self, worker: Machine) -> bool:
        """Return whether a worker is on the server's engine and so reaches the server through the private network."""
        return worker.engine == self.server.engine

    def _server_address(self) -> tuple[str, int]:
        host, _, port = (self.server.address or "").partition(":")
        return host, int(port or PORT)

    def _derived_key(self) -> str:
        return hmac.new(self.secret.encode(), self.network.encode(), hashlib.sha256).hexdigest()
