"""The arbiter's view of an Airflow pool: it reads the jobs, stores grants and logs them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from paceline.contract import ArbiterResult, ArbiterStatus, Unit

if TYPE_CHECKING:
    from paceline.airflow.api import AirflowApi
    from paceline.arbiter import DeviceRequest, Grant

_MAX_GRANTS = 5000  # maximum grants in a request; the next step sends the others
_CONFLICTS = (409, 412)  # another arbiter has the pool, or the grants have changed since they were read


class PoolApi:
    """The jobs of an Airflow pool and their grants, for the arbiter that has the pool's lease.

    Airflow's API server stores grants only if this arbiter has the lease, and has read the newest grants. So a second
    arbiter, a late request, or a process that Airflow has given up on cannot grant devices that are in use.
    """

    def __init__(self, api: AirflowApi, name: str, arbiter: str, log: Any) -> None:
        self._api = api
        self._name = name
        self._path = f"/pools/{quote(name, safe='')}"
        self._arbiter = arbiter
        self._log = log
        self._has_lease = False
        self._version = 0
        self._refusal = ""

    def take(self) -> bool:
        """Take the lease; return false while another arbiter has it."""
        if not self._has_lease:
            self._has_lease = self._put("arbiter", {}) is not None
            if self._has_lease:
                self._log.info("Allocating the devices of the pool %s", self._name)
        return self._has_lease

    def read(self) -> list[dict[str, Any]]:
        """Return all jobs of the pool that have not ended."""
        found = self._api.pages(f"{self._path}/jobs")
        self._version = found["version"]
        jobs: list[dict[str, Any]] = found["jobs"]
        return jobs

    def write(self, grants: Sequence[Grant], rows: Mapping[str, Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """Store the grants; return the result of each, or nothing if the grants have changed since ``read``."""
        names = ("dag_id", "run_id", "task_id", "map_index")
        grants = grants[:_MAX_GRANTS]
        batch = [
            {name: rows[grant.key][name] for name in names}
            | {"before": rows[grant.key]["ceiling"], "ceiling": grant.ceiling.to_json()}
            for grant in grants
        ]
        results = self._put("grants", {"version": self._version, "grants": batch})
        self._has_lease = results is not None
        return results or []

    def publish(self, status: ArbiterStatus) -> None:
        """Store the status with the lease, unless another arbiter has taken the lease."""
        if self._has_lease:
            self._has_lease = self._put("arbiter", {"status": status.to_json()}) is not None

    def _put(self, what: str, body: Mapping[str, Any]) -> Any:
        """Send a request; return its result, ``None`` after a conflict with another arbiter."""
        from paceline.airflow.api import AirflowApiError

        try:
            result = self._api.pages(f"{self._path}/{what}", {"arbiter": self._arbiter, **body}, method="PUT")
        except AirflowApiError as error:
            if error.status not in _CONFLICTS:
                raise
            if str(error) != self._refusal:
                self._log.warning("Waiting to allocate the devices of the pool %s: %s", self._name, error)
            self._refusal = str(error)
            return None
        self._refusal = ""
        return result or []


class PoolLog:
    """Logs and counts an arbiter's events, for the task's log and result. ``unit``: what the pool's devices are."""

    def __init__(self, log: Any) -> None:
        self._log = log
        self.unit: Unit = "cores"
        self._reasons: Counter[str] = Counter()
        self._grants = 0
        self._keys: set[str] = set()
        self._most_devices = 0.0
        self._lost: set[str] = set()
        self._failed: set[str] = set()

    def record_result(self, grant: Grant, result: Mapping[str, Any]) -> None:
        if not result["stored"]:
            if grant.key not in self._failed:
                self._failed.add(grant.key)
                self._log.warning("%s: could not send the grant: %s", grant.key, result["detail"])
            return
        self._grants += 1
        before, now, reason = grant.before or 0.0, grant.ceiling.devices, grant.ceiling.reason
        if reason is not None:
            self._reasons[reason.kind] += 1
        if before != now:
            self._log.info("%s: %g -> %g %s%s", grant.key, before, now, self.unit, f": {reason}" if reason else "")

    def record_requests(self, requests: Sequence[DeviceRequest]) -> None:
        self._keys.update(request.key for request in requests)
        self._most_devices = max(self._most_devices, sum(request.committed for request in requests))
        for request in requests:
            if request.lost and request.key not in self._lost:
                self._lost.add(request.key)
                message = (
                    "%s has ended, and its job may still run: up to %g %s stay reserved until "
                    "`paceline clean --remove` finds and removes the job, or, if it is gone, until the task is cleared"
                )
                self._log.warning(message, request.key, request.committed, self.unit)

    def result(self, decisions: int) -> ArbiterResult:
        return ArbiterResult(
            decisions=decisions,
            grants=self._grants,
            jobs=len(self._keys),
            reasons=dict(self._reasons),
            peak_devices=self._most_devices,
        )
