"""``ArbiterOperator``: allocates the devices of an Airflow pool to the training jobs of all DAGs in the pool."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow.sdk import BaseOperator
from airflow.sdk.bases.hook import BaseHook
from airflow.sdk.exceptions import AirflowFailException

from paceline.airflow.arguments import number, read_fields
from paceline.airflow.runtimes import Kubernetes
from paceline.airflow.tasks import CheckedTask
from paceline.airflow.values import Reader, is_template, text
from paceline.contract import Ceiling
from paceline.control import CPU_QUANTUM
from paceline.errors import InvalidInputError, PacelineError
from paceline.extras import require
from paceline.installed import POLICIES, installed

from ._arbiter_report import ArbiterReport
from ._pool import PoolApi, PoolLog

if TYPE_CHECKING:
    from airflow.sdk import Context

    from paceline.airflow.api import AirflowApi
    from paceline.allocate import Policy
    from paceline.arbiter import Arbiter, DeviceRequest

_READERS: Mapping[str, Reader] = {
    "pool_name": lambda _, value: _pool_name(value),
    "policy": lambda field, value: _policy(field, value),
    "conn_id": text,
}
_STEP_S = 1.0
_QUOTA_EVERY_S = 30.0
_OUTAGE_LIMIT_S = 120.0
_SLOTS = 128  # as in Airflow's default pool
# Wrong password, missing permission, API server without Paceline's plugin, and a task that Airflow no longer runs.
_PERMANENT_ERRORS = (401, 403, 404, 410)


class ArbiterOperator(CheckedTask, BaseOperator):
    """A task that allocates the devices of a pool to the training jobs of all DAGs that use the pool.

    Jobs of ``DeadlineTrainingOperator(shared=True, pool=...)`` share the devices. The policy makes a decision
    whenever a job arrives, ends, is late or has a new deadline, and every few minutes. The arbiter sends each decision
    to the jobs as grants. It reduces some grants before it raises others, so that the sum never exceeds ``devices``.
    Airflow stores the grants with the tasks. When an arbiter fails or stops, jobs keep their grants until the next
    arbiter continues.

    Parameters
    ----------
    pool:
        Name of the Airflow pool, created if missing. The pool's slots limit the number of running and waiting jobs.
        (templated)
    devices:
        Size of the pool, in the unit of the jobs' allocations: CPU cores, GPUs whose time jobs share, or, with
        ``quantum=1``, GPUs or other whole devices. Or :class:`~paceline.operators.Kubernetes` with a namespace whose
        ResourceQuota on CPU limits is the pool, in cores. What other pods than Paceline's use of the quota is not
        allocated. The quota is read twice a minute. (templated)
    quantum:
        Smallest change of an allocation, by default 0.05 of a core or of a shared GPU. Use 1 for whole devices.
    policy:
        Name of a policy of :mod:`paceline.allocate` or of another package, see :class:`paceline.allocate.Policy`, or a
        policy. The default keeps promised deadlines. ``"priority"`` uses the ``priority_weight`` of Airflow's tasks.
        (templated)
    every:
        Seconds, or a ``timedelta``, between two decisions if there is no event.
    lifetime:
        Seconds, or a ``timedelta``, until the task ends and the next run of its DAG continues. The DAG needs
        ``schedule="@continuous"``.
    conn_id:
        Airflow connection to Airflow's own API: host, port, login and password of a user with permission to read and
        edit the pool and the task instances of these jobs, and to create the pool if it is missing. (templated)
    retries, retry_delay:
        As for all tasks of Airflow, by default three retries after 5 s each.

    Returns
    -------
    dict
        The JSON form of an :class:`~paceline.contract.ArbiterResult`: numbers of decisions, grants and jobs.

    Examples
    --------
    >>> from paceline.operators import ArbiterOperator
    >>> arbiter = ArbiterOperator(task_id="arbiter", pool="training", devices=2, conn_id="airflow_api")
    >>> ArbiterOperator(task_id="arbiter", pool="training", devices=0, conn_id="airflow_api")
    Traceback (most recent call last):
    paceline.errors.InvalidInputError: devices: got 0, expected a number of devices of at least the quantum, 0.05 \
(task 'arbiter')
    """

    template_fields: Sequence[str] = ("pool_name", "devices", "policy", "conn_id")
    ui_color = "#e6e0f8"

    def __init__(
        self,
        *,
        pool: str,
        devices: float | str | Kubernetes,
        conn_id: str,
        quantum: float = CPU_QUANTUM,
        policy: str | Policy = "on_time_promises",
        every: float | timedelta = 180.0,
        lifetime: float | timedelta = 3600.0,
        retries: int | None = 3,
        retry_delay: timedelta | float = timedelta(seconds=5),
        **kwargs: Any,
    ) -> None:
        # Do not pass on ``pool``, because the arbiter needs no slot of the pool.
        super().__init__(retries=retries, retry_delay=retry_delay, **kwargs)
        self.pool_name = pool
        self.devices = devices
        self.conn_id = conn_id
        self.quantum = quantum
        if isinstance(policy, type):  # Airflow calls a function in a template field, and would make an instance
            raise InvalidInputError("policy", policy.__name__, f"a policy, such as {policy.__name__}(), not its class")
        self.policy = policy
        self.every = every
        self.lifetime = lifetime
        self._ended = threading.Event()
        self._quota_read_s = 0.0
        read_fields(self, _READERS, rendered=False)
        if number("quantum", quantum, "a number of devices greater than 0") <= 0:
            raise InvalidInputError("quantum", quantum, "a number of devices greater than 0")
        for name in ("every", "lifetime"):
            if _seconds(name, getattr(self, name)) <= 0:
                raise InvalidInputError(name, getattr(self, name), "seconds greater than 0, or a timedelta")
        if not is_template(devices):
            self._check_devices()

    def execute(self, context: Context) -> dict[str, Any]:
        """Allocate devices until the lifetime is over."""
        try:
            read_fields(self, _READERS, rendered=True)
            self._check_devices()
            require("worker", "numpy", "scipy")
        except PacelineError as error:
            raise AirflowFailException(str(error)) from error  # a retry cannot succeed
        from paceline.arbiter import Arbiter

        self._ended.clear()
        every_s = _seconds("every", self.every)
        arbiter = Arbiter(
            self._read_devices(),
            quantum=self.quantum,
            policy=_make_policy(self.policy, every_s),
            every_s=every_s,
        )
        pool_log = PoolLog(self.log)
        with contextlib.closing(self._connect()) as api:
            self._create_pool(api)
            pool = PoolApi(api, self.pool_name, str(context["ti"].id), self.log)
            report = self._report(arbiter)
            self._repeat(lambda: self._step(pool, report, pool_log))
        return pool_log.result(arbiter.decisions).to_json()

    def _repeat(self, step: Callable[[], None]) -> None:
        """Call ``step`` once per second until the lifetime is over; end after a permanent error or a long outage."""
        from httpx import TransportError

        from paceline.airflow.api import AirflowApiError

        end_s = time.monotonic() + _seconds("lifetime", self.lifetime)
        give_up_s = time.monotonic() + _OUTAGE_LIMIT_S
        while not self._ended.is_set() and time.monotonic() < end_s:
            try:
                step()
                give_up_s = time.monotonic() + _OUTAGE_LIMIT_S
            except (AirflowApiError, TransportError) as error:  # the jobs continue with their current grants
                permanent = isinstance(error, AirflowApiError) and error.status in _PERMANENT_ERRORS
                if permanent or time.monotonic() > give_up_s:
                    raise
                self.log.warning("A request to Airflow's API failed; trying again: %s", error)
            self._ended.wait(_STEP_S)

    def on_kill(self) -> None:
        """End the task. The jobs keep their grants."""
        self._ended.set()

    def _report(self, arbiter: Arbiter) -> ArbiterReport:
        lifetime = timedelta(seconds=_seconds("lifetime", self.lifetime))
        settings = {
            "policy": self.policy if isinstance(self.policy, str) else self.policy.name,
            "namespace": self.devices.namespace if isinstance(self.devices, Kubernetes) else None,
            "quantum": self.quantum,
            "every_s": _seconds("every", self.every),
            "ends_at": datetime.now(timezone.utc) + lifetime,
        }
        return ArbiterReport(self.pool_name, arbiter, settings)

    def _step(self, pool: PoolApi, report: ArbiterReport, pool_log: PoolLog) -> None:
        if not pool.take():
            return
        arbiter = report.arbiter
        if isinstance(self.devices, Kubernetes) and time.monotonic() >= self._quota_read_s + _QUOTA_EVERY_S:
            self._resize(arbiter)
        rows = pool.read()
        tasks = {_task_key(row): row for row in rows}
        uses_priority = arbiter.policy.uses_priority
        read = (_to_request(key, row, uses_priority=uses_priority) for key, row in tasks.items())
        requests = [request for request in read if request is not None]
        now_s = time.time()
        grants = report.step(requests, now_s)
        pool_log.unit = arbiter.unit
        pool_log.record_requests(requests)
        if grants:
            for grant, result in zip(grants, pool.write(grants, tasks), strict=False):
                pool_log.record_result(grant, result)
        if (status := report.make(requests, tasks, now_s)) is not None:
            pool.publish(status)

    def _create_pool(self, api: AirflowApi) -> None:
        """Create the pool if it does not exist, because Airflow starts no task in a missing pool."""
        from paceline.airflow.api import AirflowApiError

        try:
            api.api("GET", f"/pools/{quote(self.pool_name, safe='')}")
        except AirflowApiError as error:
            if error.status != 404:
                raise
            pool = {"name": self.pool_name, "slots": _SLOTS, "description": "Training jobs that share devices"}
            api.api("POST", "/pools", pool)
            self.log.info("Created pool %s with %d slots for running and waiting training jobs", self.pool_name, _SLOTS)

    def _connect(self) -> AirflowApi:
        from paceline.airflow.api import AirflowApi

        connection = BaseHook.get_connection(self.conn_id)
        if not connection.host or not connection.login:
            accepted = "a connection with a host, and the login and password of an Airflow user"
            raise AirflowFailException(str(InvalidInputError("conn_id", self.conn_id, accepted)))
        host = connection.host if "://" in connection.host else f"{connection.schema or 'http'}://{connection.host}"
        url = f"{host}:{connection.port}" if connection.port else host
        return AirflowApi(url, {connection.login: connection.password or ""}, user=connection.login)

    def _check_devices(self) -> None:
        accepted = f"a number of devices of at least the quantum, {self.quantum:g}"
        if not isinstance(self.devices, Kubernetes) and number("devices", self.devices, accepted) < self.quantum:
            raise InvalidInputError("devices", self.devices, accepted)

    def _read_devices(self) -> float:
        """Return the number of devices; of a quota without room for one, a single quantum."""
        if not isinstance(self.devices, Kubernetes):
            return number("devices", self.devices)
        self._quota_read_s = time.monotonic()
        return max(self.devices.open().quota(), self.quantum)

    def _resize(self, arbiter: Arbiter) -> None:
        try:
            devices = self._read_devices()
        except PacelineError as error:  # the jobs continue with what the pool had
            self.log.warning(
                "Could not read the quota of the pool; it stays at %g %s: %s", arbiter.devices, arbiter.unit, error
            )
            return
        if devices != arbiter.devices:
            message = "The pool has %g %s now, as its quota says; it had %g"
            self.log.info(message, devices, arbiter.unit, arbiter.devices)
            arbiter.devices = devices


def _pool_name(value: Any) -> str:
    accepted = "the name of an Airflow pool, without /"
    name = text("pool", value, accepted)
    if "/" in name and not is_template(name):
        raise InvalidInputError("pool", name, accepted)
    return name


def _task_key(row: Mapping[str, Any]) -> str:
    mapped = f"[{row['map_index']}]" if row["map_index"] >= 0 else ""
    return f"{row['dag_id']} {row['run_id']} {row['task_id']}{mapped}"


def _to_request(key: str, row: Mapping[str, Any], *, uses_priority: bool) -> DeviceRequest | None:
    from paceline.arbiter import DeviceRequest

    arrived = datetime.fromisoformat(row["started_at"]) if row["started_at"] else None
    # By default, Airflow's weight counts downstream tasks and does not measure importance.
    weight = float(row["priority_weight"] or 0) if uses_priority else 1.0
    request = DeviceRequest.read(key, row["pace"], row["ceiling"], arrived, weight)
    if request is not None and row["lost"] and not request.ended:
        return DeviceRequest.of_lost_job(key, request.ceiling or Ceiling(request.committed), request.held)
    return request


def _policy(field: str, value: Any) -> Any:
    """Return the name of an installed policy, or a policy."""
    if isinstance(value, str) and value in installed(POLICIES):
        return value
    accepted = f"one of {', '.join(installed(POLICIES))}, or a Policy"
    if value is None or isinstance(value, (str, int, float)):
        raise InvalidInputError(field, value, accepted)
    from paceline.allocate import Policy

    if not isinstance(value, Policy):
        raise InvalidInputError(field, value, accepted)
    return _check_policy(value)


def _make_policy(policy: str | Policy, every_s: float) -> Policy:
    from paceline.allocate import make_policy

    return _check_policy(make_policy(policy, period_s=every_s) if isinstance(policy, str) else policy)


def _check_policy(policy: Policy) -> Policy:
    if not policy.shares_pool:
        raise InvalidInputError("policy", policy.name, "a policy that shares one pool and rejects no job")
    return policy


def _seconds(name: str, value: float | timedelta) -> float:
    return value.total_seconds() if isinstance(value, timedelta) else number(name, value, "seconds, or a timedelta")
