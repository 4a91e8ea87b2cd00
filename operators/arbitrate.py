"""``ArbiterOperator``: shares the devices of an Airflow pool among the trainings of all DAGs that run in it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow.sdk import BaseOperator
from airflow.sdk.bases.hook import BaseHook
from airflow.sdk.exceptions import AirflowFailException

from paceline.contract import CEILING, Ceiling
from paceline.control import CPU_QUANTUM
from paceline.errors import InvalidInputError

from ._values import Reader, is_template, number, one_of, read_fields, text

if TYPE_CHECKING:
    from airflow.sdk import Context

    from paceline.airflow.api import AirflowApi
    from paceline.arbiter import Arbiter, DeviceRequest, Grant

POLICIES = ("on_time", "edf", "fifo", "priority", "greedy", "growing", "milp")
_READERS: Mapping[str, Reader] = {
    "pool_name": lambda _, value: text("pool", value, "the name of an Airflow pool"),
    "policy": one_of(POLICIES),
    "conn_id": text,
}
_LOOK_EVERY_S = 1.0
_PATIENCE_S = 120.0
_SLOTS = 128  # of a pool that is made: as many as Airflow's default pool has
_REFUSED = (401, 403, 404)  # a wrong password, a user without the right, an API server without Paceline's plugin


class ArbiterOperator(BaseOperator):
    """Shares the devices of a pool among the trainings that run in it, whichever DAG they are of.

    Trainings take part with ``DeadlineTrainingOperator(shared=True, pool=...)``. The policy decides when one comes,
    ends, is late or has its deadline moved, and every few minutes; what it decides becomes each one's ceiling. A
    training is lowered before another is raised, so no more than ``devices`` are ever given out. What was given out
    stands with the trainings: an arbiter that fails or is stopped leaves them as they are, and the next one goes on.

    Parameters
    ----------
    pool:
        The Airflow pool, made if it is not there. Its slots say how many trainings may be there, running or waiting.
        (templated)
    devices:
        How many devices there are. (templated)
    quantum:
        The smallest part that is given out: 0.05 of a core; 1 for whole devices.
    policy:
        Who decides: ``"on_time"``, or another of :mod:`paceline.allocate` for one pool. ``"priority"`` goes by the
        ``priority_weight`` of Airflow's tasks. (templated)
    every:
        Seconds, or a ``timedelta``, between two decisions when nothing has happened.
    lifetime:
        Seconds, or a ``timedelta``, after which the task ends, for the next run of its DAG to go on: a DAG with
        ``schedule="@continuous"``.
    conn_id:
        Airflow connection to Airflow's own API: host, port, and login and password of a user who may see and change
        these trainings. (templated)

    Returns
    -------
    dict
        ``decisions``, ``grants`` and ``trainings`` (how many there were), ``most_given`` (devices at a time).

    Examples
    --------
    >>> from paceline.operators import ArbiterOperator
    >>> arbiter = ArbiterOperator(task_id="arbiter", pool="training", devices=2, conn_id="airflow_api")
    >>> ArbiterOperator(task_id="arbiter", pool="training", devices=0, conn_id="airflow_api")
    Traceback (most recent call last):
    paceline.errors.InvalidInputError: devices: got 0, expected a number of devices of at least the quantum, 0.05
    """

    template_fields: Sequence[str] = ("pool_name", "devices", "policy", "conn_id")
    ui_color = "#e6e0f8"

    def __init__(
        self,
        *,
        pool: str,
        devices: float | str,
        conn_id: str,
        quantum: float = CPU_QUANTUM,
        policy: str = "on_time",
        every: float | timedelta = 180.0,
        lifetime: float | timedelta = 3600.0,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("retries", 3)
        kwargs.setdefault("retry_delay", timedelta(seconds=5))
        super().__init__(**kwargs)  # the arbiter itself needs no slot of the pool that it shares
        self.pool_name = pool
        self.devices = devices
        self.conn_id = conn_id
        self.quantum = quantum
        self.policy = policy
        self.every = every
        self.lifetime = lifetime
        self._ended = threading.Event()
        read_fields(self, _READERS, rendered=False)
        if number("quantum", quantum, "a number of devices greater than 0") <= 0:
            raise InvalidInputError("quantum", quantum, "a number of devices greater than 0")
        for name in ("every", "lifetime"):
            if _seconds(name, getattr(self, name)) <= 0:
                raise InvalidInputError(name, getattr(self, name), "seconds greater than 0, or a timedelta")
        if not is_template(devices):
            self._check_devices()

    def execute(self, context: Context) -> dict[str, Any]:
        """Share until the lifetime is over."""
        try:
            read_fields(self, _READERS, rendered=True)
            self._check_devices()
        except InvalidInputError as error:
            raise AirflowFailException(str(error)) from error
        from httpx import TransportError

        from paceline.airflow.api import AirflowApiError
        from paceline.arbiter import Arbiter

        self._ended.clear()
        every_s = _seconds("every", self.every)
        arbiter = Arbiter(
            number("devices", self.devices),
            quantum=self.quantum,
            policy=_policy(self.policy, every_s),
            every_s=every_s,
        )
        pool_log = _PoolLog(self.log)
        over_s = time.monotonic() + _seconds("lifetime", self.lifetime)
        patient_until_s = time.monotonic() + _PATIENCE_S
        with contextlib.closing(self._api()) as api:
            self._make_pool(api)
            while not self._ended.is_set() and time.monotonic() < over_s:
                try:
                    self._look(api, arbiter, pool_log)
                    patient_until_s = time.monotonic() + _PATIENCE_S
                except (AirflowApiError, TransportError) as error:  # trainings go on within their ceilings
                    refused = isinstance(error, AirflowApiError) and error.status in _REFUSED
                    if refused or time.monotonic() > patient_until_s:
                        raise
                    self.log.warning("Airflow's API did not answer as it should; trying again. %s", error)
                self._ended.wait(_LOOK_EVERY_S)
        return {"decisions": arbiter.decisions, **pool_log.summary()}

    def on_kill(self) -> None:
        """End; trainings keep their ceilings."""
        self._ended.set()

    def _look(self, api: AirflowApi, arbiter: Arbiter, pool_log: _PoolLog) -> None:
        from paceline.airflow.api import AirflowApiError

        rows = api.pages(f"/pools/{quote(self.pool_name, safe='')}/trainings")
        where = {_key(row): row for row in rows}
        requests = [request for key, row in where.items() if (request := _request(key, row, self.policy)) is not None]
        for grant in arbiter.look(requests, time.time()):
            row = where[grant.key]
            task = (row["dag_id"], row["run_id"], row["task_id"])
            try:
                api.put_task_state(*task, CEILING, grant.ceiling.to_json(), map_index=row["map_index"])
            except AirflowApiError as error:
                if error.status not in (403, 404):  # deleted meanwhile, or not for this user to change
                    raise
                pool_log.refused(grant.key, error)
            else:
                pool_log.take(grant)
        pool_log.look(requests)

    def _make_pool(self, api: AirflowApi) -> None:
        """Airflow starts nothing in a pool that is not there."""
        from paceline.airflow.api import AirflowApiError

        try:
            api.api("GET", f"/pools/{quote(self.pool_name, safe='')}")
        except AirflowApiError as error:
            if error.status != 404:
                raise
            pool = {"name": self.pool_name, "slots": _SLOTS, "description": "Trainings that share devices"}
            api.api("POST", "/pools", pool)
            self.log.info("The pool %s is made, with room for %d trainings that run or wait", self.pool_name, _SLOTS)

    def _api(self) -> AirflowApi:
        from paceline.airflow.api import AirflowApi

        connection = BaseHook.get_connection(self.conn_id)
        if not connection.host or not connection.login:
            accepted = "a connection with a host, and a login and password of a user of Airflow's"
            raise AirflowFailException(str(InvalidInputError("conn_id", self.conn_id, accepted)))
        host = connection.host if "://" in connection.host else f"{connection.schema or 'http'}://{connection.host}"
        url = f"{host}:{connection.port}" if connection.port else host
        return AirflowApi(url, {connection.login: connection.password or ""}, user=connection.login)

    def _check_devices(self) -> None:
        accepted = f"a number of devices of at least the quantum, {self.quantum:g}"
        if number("devices", self.devices, accepted) < self.quantum:
            raise InvalidInputError("devices", self.devices, accepted)


class _PoolLog:
    """Record of an arbiter's work, for its log and its result."""

    def __init__(self, log: Any) -> None:
        self._log = log
        self._grants = 0
        self._keys: set[str] = set()
        self._most_given = 0.0
        self._lost: set[str] = set()
        self._refused: set[str] = set()
        self._newest: dict[str, int] = {}
        self._alone = True

    def take(self, grant: Grant) -> None:
        self._grants += 1
        self._newest[grant.key] = grant.ceiling.grant
        before, now = grant.before or 0.0, grant.ceiling.devices
        if before != now:
            self._log.info("%s: %g -> %g devices: %s", grant.key, before, now, grant.ceiling.reason)

    def refused(self, key: str, error: Exception) -> None:
        if key not in self._refused:
            self._refused.add(key)
            self._log.warning("%s could not be sent its ceiling: %s", key, error)

    def look(self, requests: Sequence[DeviceRequest]) -> None:
        self._keys.update(request.key for request in requests)
        self._most_given = max(self._most_given, sum(request.committed for request in requests))
        if self._alone and any(self._is_of_another(request) for request in requests):
            self._alone = False
            self._log.warning("Somebody else gives out devices of this pool, too: it may be given out twice")
        for request in requests:
            if request.lost and request.key not in self._lost:
                self._lost.add(request.key)
                message = "%s ended without a word: the %g devices that it may hold are given to nobody until its task"
                self._log.warning(message + " is cleared", request.key, request.committed)

    def _is_of_another(self, request: DeviceRequest) -> bool:
        granted = request.ceiling.grant if request.ceiling is not None else 0
        return granted > self._newest.get(request.key, granted)

    def summary(self) -> dict[str, Any]:
        return {"grants": self._grants, "trainings": len(self._keys), "most_given": round(self._most_given, 6)}


def _key(row: Mapping[str, Any]) -> str:
    mapped = f"[{row['map_index']}]" if row["map_index"] >= 0 else ""
    return f"{row['dag_id']} {row['run_id']} {row['task_id']}{mapped}"


def _request(key: str, row: Mapping[str, Any], policy: str) -> DeviceRequest | None:
    from paceline.arbiter import DeviceRequest

    arrived = datetime.fromisoformat(row["started_at"]) if row["started_at"] else None
    # Airflow adds up what comes after a task: on time, nobody is more important for having more tasks behind it.
    weight = float(row["priority_weight"] or 0) if policy == "priority" else 1.0
    request = DeviceRequest.read(key, row["pace"], row["ceiling"], arrived, weight)
    if request is not None and row["lost"] and not request.ended:
        return DeviceRequest.of_a_lost_one(key, request.ceiling or Ceiling(request.committed), request.held)
    return request


def _policy(name: str, every_s: float) -> Any:
    from paceline.allocate import Greedy, Growing, RollingHorizon, edf, fifo, priority

    makers: dict[str, Any] = {
        "edf": edf,
        "fifo": fifo,
        "priority": priority,
        "greedy": Greedy,
        "growing": Growing,
        "milp": lambda: RollingHorizon(period_s=every_s),
    }
    return makers[name]() if name in makers else None


def _seconds(name: str, value: float | timedelta) -> float:
    return value.total_seconds() if isinstance(value, timedelta) else number(name, value, "seconds, or a timedelta")
