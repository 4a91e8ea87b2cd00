"""A small client of Airflow's REST API: trigger a DAG, wait for it, read what it wrote.

Called by the ``paceline`` command, and by ``AirflowProcess`` for ``make demo`` and the integration tests.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

import httpx
from tenacity import retry, retry_if_exception, stop_after_attempt, wait_random_exponential

from paceline.errors import PacelineError

_FINAL = ("success", "failed")


class AirflowApiError(PacelineError):
    """Airflow answered with an error. ``status`` is the HTTP status, the message holds Airflow's own text."""

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        super().__init__(message)


def _is_collision(error: BaseException) -> bool:
    """Whether two writers met in Airflow's database, as happens with SQLite; nothing was changed then."""
    return isinstance(error, AirflowApiError) and error.status == 500 and "Database error" in str(error)


_again_after_collision = retry(
    retry=retry_if_exception(_is_collision),
    stop=stop_after_attempt(5),
    wait=wait_random_exponential(multiplier=0.1, max=2.0),
    reraise=True,
)


class AirflowApi:
    """One Airflow's REST API, as any of the users whose passwords are known.

    Parameters
    ----------
    url:
        Where the API server answers, without a slash at the end.
    passwords:
        User name to password.
    user:
        Who calls, where a method does not say.
    token:
        The token of ``user``, in place of a password.
    """

    def __init__(
        self, url: str, passwords: Mapping[str, str], *, user: str = "admin", token: str | None = None
    ) -> None:
        self.url = url.rstrip("/")
        self.passwords = dict(passwords)
        self.user = user
        self._tokens: dict[str, str] = {user: token} if token else {}
        # A proxy from the environment must not get in between two processes of one machine.
        local = httpx.URL(url).host in ("127.0.0.1", "localhost", "::1")
        self._client = httpx.Client(base_url=self.url, timeout=30.0, trust_env=not local)

    def token(self, user: str | None = None) -> str:
        """Log in (once) and return the token that goes into an ``Authorization: Bearer`` header."""
        user = user or self.user
        if user not in self._tokens:
            login = {"username": user, "password": self.passwords[user]}
            self._tokens[user] = _checked(self._client.post("/auth/token", json=login))["access_token"]
        return self._tokens[user]

    @_again_after_collision
    def api(self, method: str, path: str, json: object = None, *, user: str | None = None, **params: Any) -> Any:
        """Call ``/api/v2`` + ``path`` and return the parsed answer (``None`` if it is empty).

        Raises ``AirflowApiError`` for every answer of 400 and above. A call that met another writer in Airflow's
        database is made again, up to five times.
        """
        return self._call(method, f"/api/v2{path}", json, user, params)

    @_again_after_collision
    def pages(self, path: str, *, user: str | None = None, **params: Any) -> Any:
        """Ask what Paceline's pages ask: ``GET /paceline/api`` + ``path``. As for ``api`` otherwise."""
        return self._call("GET", f"/paceline/api{path}", None, user, params)

    def _call(self, method: str, path: str, json: object, user: str | None, params: Mapping[str, Any]) -> Any:
        answer = self._send(method, path, json, user, params)
        if answer.status_code == 401 and (user or self.user) in self.passwords:  # tokens last a day or so
            self._tokens.pop(user or self.user, None)
            answer = self._send(method, path, json, user, params)
        return _checked(answer)

    def _send(
        self, method: str, path: str, json: object, user: str | None, params: Mapping[str, Any]
    ) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.token(user)}"}
        return self._client.request(method, path, json=json, params=params or None, headers=headers)

    def close(self) -> None:
        """Let go of the connections."""
        self._client.close()

    def health(self) -> dict[str, str]:
        """Return the health of each component as Airflow sees it; ``api_server`` is missing from none."""
        states = dict.fromkeys(("api_server", "metadatabase", "scheduler", "triggerer", "dag_processor"), "unknown")
        try:
            answer = _checked(self._client.get("/api/v2/monitor/health", timeout=10.0))
        except (httpx.TransportError, AirflowApiError):
            return states
        states.update({name: part["status"] for name, part in answer.items() if part.get("status")})
        return {**states, "api_server": "healthy"}

    def run_dag(
        self,
        dag_id: str,
        conf: Mapping[str, object] | None = None,
        *,
        run_id: str | None = None,
        parse_timeout_s: float = 60.0,
        user: str | None = None,
    ) -> str:
        """Trigger a DAG with ``conf`` (its params) and return the id of the run.

        Waits until the DAG processor knows the DAG; raises with the import errors if it does not in time.
        """
        self._wait_for(lambda: self._knows(dag_id), parse_timeout_s, lambda: self._why_unknown(dag_id))
        self.api("PATCH", f"/dags/{dag_id}", {"is_paused": False})
        body: dict[str, object] = {"conf": dict(conf or {}), "logical_date": None}
        if run_id is not None:
            body["dag_run_id"] = run_id
        created: str = self.api("POST", f"/dags/{dag_id}/dagRuns", body, user=user)["dag_run_id"]
        return created

    def dag_run(self, dag_id: str, run_id: str) -> dict[str, Any]:
        """Return a run as the REST API describes it."""
        run: dict[str, Any] = self.api("GET", f"/dags/{dag_id}/dagRuns/{quote(run_id)}")
        return run

    def wait(
        self,
        dag_id: str,
        run_id: str,
        timeout_s: float = 120.0,
        *,
        each: Callable[[], object] | None = None,
        period_s: float = 0.5,
    ) -> str:
        """Wait for the end of a run and return its state, ``"success"`` or ``"failed"``.

        ``each`` is called between two looks (to show progress, or to do something while the run is under way).
        Raises ``TimeoutError`` with the state of every task after ``timeout_s``.
        """

        def ended() -> bool:
            if each is not None:
                each()
            return self.dag_run(dag_id, run_id)["state"] in _FINAL

        self._wait_for(ended, timeout_s, lambda: f"{dag_id} {run_id}: {self.task_states(dag_id, run_id)}", period_s)
        state: str = self.dag_run(dag_id, run_id)["state"]
        return state

    def task_instance(self, dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> dict[str, Any]:
        """Return a task of a run as the REST API describes it."""
        path = f"/dags/{dag_id}/dagRuns/{quote(run_id)}/taskInstances/{task_id}"
        path += f"/{map_index}" if map_index >= 0 else ""
        instance: dict[str, Any] = self.api("GET", path)
        return instance

    def task_states(self, dag_id: str, run_id: str) -> dict[str, str | None]:
        """Return the state of each task of a run."""
        answer = self.api("GET", f"/dags/{dag_id}/dagRuns/{quote(run_id)}/taskInstances")
        return {instance["task_id"]: instance["state"] for instance in answer["task_instances"]}

    def wait_for_task(
        self, dag_id: str, run_id: str, task_id: str, state: str = "running", timeout_s: float = 60.0
    ) -> dict[str, Any]:
        """Wait until a task is in ``state`` and return it."""

        def there() -> bool:
            return self.task_states(dag_id, run_id).get(task_id) == state

        self._wait_for(there, timeout_s, lambda: f"{task_id}: {self.task_states(dag_id, run_id)}")
        return self.task_instance(dag_id, run_id, task_id)

    def task_log(self, dag_id: str, run_id: str, task_id: str, try_number: int = 1, map_index: int = -1) -> str:
        """Return what a task has logged so far, one event a line."""
        path = f"/dags/{dag_id}/dagRuns/{quote(run_id)}/taskInstances/{task_id}/logs/{try_number}"
        content = self.api("GET", path, map_index=map_index)["content"]
        return "\n".join(_line(event) for event in content)

    def xcom(self, dag_id: str, run_id: str, task_id: str, key: str = "return_value") -> Any:
        """Return what a task has returned (or pushed under another key)."""
        path = f"/dags/{dag_id}/dagRuns/{quote(run_id)}/taskInstances/{task_id}/xcomEntries/{key}"
        return self.api("GET", path, deserialize=True)["value"]

    def task_state(self, dag_id: str, run_id: str, task_id: str, key: str, *, map_index: int = -1) -> Any:
        """Return a value of a task's state store; ``None`` if it is not there."""
        try:
            return self.api("GET", self._state_path(dag_id, run_id, task_id, key), map_index=map_index)["value"]
        except AirflowApiError as error:
            if error.status == 404:
                return None
            raise

    def set_task_state(
        self,
        dag_id: str,
        run_id: str,
        task_id: str,
        key: str,
        value: object,
        *,
        user: str | None = None,
        map_index: int = -1,
    ) -> None:
        """Write a value of a task's state store, as a person does to change a deadline."""
        path = self._state_path(dag_id, run_id, task_id, key)
        self.api("PATCH", path, {"value": value}, user=user, map_index=map_index)

    def put_task_state(
        self, dag_id: str, run_id: str, task_id: str, key: str, value: object, *, map_index: int = -1
    ) -> None:
        """Write a value of a task's state store, whether there has been one or not."""
        self.api("PUT", self._state_path(dag_id, run_id, task_id, key), {"value": value}, map_index=map_index)

    def _state_path(self, dag_id: str, run_id: str, task_id: str, key: str) -> str:
        return f"/dags/{dag_id}/dagRuns/{quote(run_id)}/taskInstances/{task_id}/state-store/{key}"

    def _knows(self, dag_id: str) -> bool:
        try:
            self.api("GET", f"/dags/{dag_id}")
        except AirflowApiError as error:
            if error.status == 404:
                return False
            raise
        return True

    def _why_unknown(self, dag_id: str) -> str:
        errors = self.api("GET", "/importErrors")["import_errors"]
        known = [dag["dag_id"] for dag in self.api("GET", "/dags")["dags"]]
        traces = "\n".join(error["stack_trace"] for error in errors)
        return f"no DAG {dag_id}, known: {known}\n{traces}"

    def _wait_for(
        self, done: Callable[[], bool], timeout_s: float, what: Callable[[], str], period_s: float = 0.3
    ) -> None:
        end = time.monotonic() + timeout_s
        while not done():
            if time.monotonic() > end:
                raise TimeoutError(f"not within {timeout_s:g} s: {what()}")
            time.sleep(period_s)


def _checked(answer: httpx.Response) -> Any:
    if answer.status_code >= 400:
        request = answer.request
        raise AirflowApiError(
            answer.status_code, f"{request.method} {request.url.path}: {answer.status_code} {answer.text}"
        )
    return answer.json() if answer.content else None


def _line(event: object) -> str:
    if not isinstance(event, dict):
        return str(event)
    details = {key: value for key, value in event.items() if key not in ("event", "timestamp", "level", "logger")}
    text = f"{event.get('timestamp') or ''} {event.get('level') or ''} {event.get('event', '')}".strip()
    return text + "".join(f" {key}={value}" for key, value in details.items() if value)
