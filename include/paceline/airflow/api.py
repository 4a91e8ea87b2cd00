"""A small client for Airflow's REST API: trigger a DAG, wait for it, read its XComs, logs and state store.

Used by the ``paceline`` command, and by ``AirflowProcess`` for ``make demo`` and the integration tests.
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
    """Error response from Airflow. ``status`` is the HTTP status; the message contains Airflow's own text."""

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        super().__init__(message)


def _is_locked(error: BaseException) -> bool:
    """Return whether the call failed, changing nothing, because another writer had locked Airflow's database."""
    return isinstance(error, AirflowApiError) and error.status == 500 and "Database error" in str(error)


_retry_if_locked = retry(
    retry=retry_if_exception(_is_locked),
    stop=stop_after_attempt(5),
    wait=wait_random_exponential(multiplier=0.1, max=2.0),
    reraise=True,
)


def is_local(url: str) -> bool:
    """Return whether a URL is on the loopback interface, which no proxy from the environment must handle."""
    return httpx.URL(url).host in ("127.0.0.1", "localhost", "::1")


class AirflowApi:
    """Client of Airflow's REST API. Each call can run as any user in ``passwords``.

    Parameters
    ----------
    url:
        Base URL of the API server.
    passwords:
        Mapping of user names to passwords.
    user:
        Default user of the calls.
    token:
        Access token of ``user``, used instead of a password.
    """

    def __init__(
        self, url: str, passwords: Mapping[str, str], *, user: str = "admin", token: str | None = None
    ) -> None:
        self.url = url.rstrip("/")
        self.passwords = dict(passwords)
        self.user = user
        self._tokens: dict[str, str] = {user: token} if token else {}
        self._client = httpx.Client(base_url=self.url, timeout=30.0, trust_env=not is_local(url))

    def token(self, user: str | None = None) -> str:
        """Return the user's token for an ``Authorization: Bearer`` header. Log in on the first call."""
        user = user or self.user
        if user not in self._tokens:
            login = {"username": user, "password": self.passwords[user]}
            try:
                answer = _parsed_response(self._client.post("/auth/token", json=login))
            except AirflowApiError as error:
                raise AirflowApiError(error.status, f"login of the user {user!r}: {error}") from None
            self._tokens[user] = answer["access_token"]
        return self._tokens[user]

    @_retry_if_locked
    def api(self, method: str, path: str, json: object = None, *, user: str | None = None, **params: Any) -> Any:
        """Call ``/api/v2`` + ``path`` and return the parsed response (``None`` if it is empty).

        Raises ``AirflowApiError`` if the status is 400 or above. Tries up to five times while Airflow's database is
        locked.
        """
        return self._call(method, f"/api/v2{path}", json, user, params)

    @_retry_if_locked
    def pages(
        self, path: str, json: object = None, *, method: str = "GET", user: str | None = None, **params: Any
    ) -> Any:
        """Call ``/paceline/api`` + ``path``, the API of Paceline's plugin. Raise and retry like ``api``."""
        return self._call(method, f"/paceline/api{path}", json, user, params)

    def _call(self, method: str, path: str, json: object, user: str | None, params: Mapping[str, Any]) -> Any:
        response = self._send(method, path, json, user, params)
        if response.status_code == 401 and (user or self.user) in self.passwords:  # tokens expire after about a day
            self._tokens.pop(user or self.user, None)
            response = self._send(method, path, json, user, params)
        return _parsed_response(response)

    def _send(
        self, method: str, path: str, json: object, user: str | None, params: Mapping[str, Any]
    ) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.token(user)}"}
        request = self._client.build_request(method, path, json=json, params=params or None, headers=headers)
        try:
            return self._client.send(request)
        except (httpx.ReadError, httpx.RemoteProtocolError):
            if method != "GET":
                raise
            return self._client.send(request)  # the server has closed a connection that was open from an earlier call

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def health(self) -> dict[str, str]:
        """Return the state of each Airflow component; all states are ``"unknown"`` if Airflow does not respond."""
        states = dict.fromkeys(("api_server", "metadatabase", "scheduler", "triggerer", "dag_processor"), "unknown")
        try:
            health = _parsed_response(self._client.get("/api/v2/monitor/health", timeout=10.0))
        except (httpx.TransportError, AirflowApiError):
            return states
        states.update({name: component["status"] for name, component in health.items() if component.get("status")})
        return {**states, "api_server": "healthy"}

    def run_dag(
        self,
        dag_id: str,
        conf: Mapping[str, object] | None = None,
        *,
        run_id: str | None = None,
        logical_date: str | None = None,
        parse_timeout_s: float = 60.0,
        user: str | None = None,
    ) -> str:
        """Trigger a DAG with ``conf`` (its params) and return the id of the run.

        Without ``logical_date`` (ISO 8601), the templates of the DAG have no ``{{ ds }}``. Waits until Airflow parses
        the DAG. After ``parse_timeout_s``, raises ``TimeoutError`` with the import errors.
        """
        self._wait_for(lambda: self._dag_exists(dag_id), parse_timeout_s, lambda: self._missing_dag_message(dag_id))
        self.api("PATCH", f"/dags/{dag_id}", {"is_paused": False})
        body: dict[str, object] = {"conf": dict(conf or {}), "logical_date": logical_date}
        if run_id is not None:
            body["dag_run_id"] = run_id
        created: str = self.api("POST", f"/dags/{dag_id}/dagRuns", body, user=user)["dag_run_id"]
        return created

    def dag_run(self, dag_id: str, run_id: str) -> dict[str, Any]:
        """Return a DAG run as the REST API describes it."""
        run: dict[str, Any] = self.api("GET", f"/dags/{dag_id}/dagRuns/{quote(run_id)}")
        return run

    def wait(
        self,
        dag_id: str,
        run_id: str,
        timeout_s: float = 120.0,
        *,
        before_poll: Callable[[], object] | None = None,
        period_s: float = 0.5,
    ) -> str:
        """Wait until a run ends and return its state, ``"success"`` or ``"failed"``.

        Polls every ``period_s`` and calls ``before_poll`` before each poll, for instance to show progress. After
        ``timeout_s``, raises ``TimeoutError`` with the state of every task.
        """

        def has_ended() -> bool:
            if before_poll is not None:
                before_poll()
            return self.dag_run(dag_id, run_id)["state"] in _FINAL

        self._wait_for(has_ended, timeout_s, lambda: f"{dag_id} {run_id}: {self.task_states(dag_id, run_id)}", period_s)
        state: str = self.dag_run(dag_id, run_id)["state"]
        return state

    def task_instance(self, dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> dict[str, Any]:
        """Return a task instance as the REST API describes it."""
        path = f"/dags/{dag_id}/dagRuns/{quote(run_id)}/taskInstances/{task_id}"
        path += f"/{map_index}" if map_index >= 0 else ""
        instance: dict[str, Any] = self.api("GET", path)
        return instance

    def task_states(self, dag_id: str, run_id: str) -> dict[str, str | None]:
        """Return the state of each task of a run."""
        response = self.api("GET", f"/dags/{dag_id}/dagRuns/{quote(run_id)}/taskInstances")
        return {instance["task_id"]: instance["state"] for instance in response["task_instances"]}

    def wait_for_task(
        self, dag_id: str, run_id: str, task_id: str, state: str = "running", timeout_s: float = 60.0
    ) -> dict[str, Any]:
        """Wait until a task is in ``state`` and return the task instance."""

        def has_reached_state() -> bool:
            return self.task_states(dag_id, run_id).get(task_id) == state

        self._wait_for(has_reached_state, timeout_s, lambda: f"{task_id}: {self.task_states(dag_id, run_id)}")
        return self.task_instance(dag_id, run_id, task_id)

    def task_log(self, dag_id: str, run_id: str, task_id: str, try_number: int = 1, map_index: int = -1) -> str:
        """Return the log of a task so far, one event per line."""
        path = f"/dags/{dag_id}/dagRuns/{quote(run_id)}/taskInstances/{task_id}/logs/{try_number}"
        content = self.api("GET", path, map_index=map_index)["content"]
        return "\n".join(_format_event(event) for event in content)

    def xcom(self, dag_id: str, run_id: str, task_id: str, key: str = "return_value") -> Any:
        """Return a task's XCom, by default its return value."""
        path = f"/dags/{dag_id}/dagRuns/{quote(run_id)}/taskInstances/{task_id}/xcomEntries/{key}"
        return self.api("GET", path, deserialize=True)["value"]

    def task_state(self, dag_id: str, run_id: str, task_id: str, key: str, *, map_index: int = -1) -> Any:
        """Return a value from a task's state store; ``None`` if it does not exist."""
        try:
            return self.api("GET", self._state_store_path(dag_id, run_id, task_id, key), map_index=map_index)["value"]
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
        """Change an existing value in a task's state store, for example the deadline."""
        path = self._state_store_path(dag_id, run_id, task_id, key)
        self.api("PATCH", path, {"value": value}, user=user, map_index=map_index)

    def put_task_state(
        self, dag_id: str, run_id: str, task_id: str, key: str, value: object, *, map_index: int = -1
    ) -> None:
        """Create or replace a value in a task's state store."""
        self.api("PUT", self._state_store_path(dag_id, run_id, task_id, key), {"value": value}, map_index=map_index)

    def delete_task_state(self, dag_id: str, run_id: str, task_id: str, key: str, *, map_index: int = -1) -> None:
        """Delete a value from a task's state store, if it exists."""
        self.api("DELETE", self._state_store_path(dag_id, run_id, task_id, key), map_index=map_index)

    def _state_store_path(self, dag_id: str, run_id: str, task_id: str, key: str) -> str:
        return f"/dags/{dag_id}/dagRuns/{quote(run_id)}/taskInstances/{task_id}/state-store/{key}"

    def _dag_exists(self, dag_id: str) -> bool:
        try:
            self.api("GET", f"/dags/{dag_id}")
        except AirflowApiError as error:
            if error.status == 404:
                return False
            raise
        return True

    def _missing_dag_message(self, dag_id: str) -> str:
        errors = self.api("GET", "/importErrors")["import_errors"]
        known = [dag["dag_id"] for dag in self.api("GET", "/dags")["dags"]]
        traces = "\n".join(error["stack_trace"] for error in errors)
        return f"no DAG {dag_id}, known: {known}\n{traces}"

    def _wait_for(
        self, done: Callable[[], bool], timeout_s: float, describe: Callable[[], str], period_s: float = 0.3
    ) -> None:
        end = time.monotonic() + timeout_s
        while not done():
            if time.monotonic() > end:
                raise TimeoutError(f"timed out after {timeout_s:g} s: {describe()}")
            time.sleep(period_s)


def _parsed_response(response: httpx.Response) -> Any:
    request = response.request
    if response.is_redirect:
        location = response.headers.get("location")
        message = f"{request.method} {request.url}: redirected to {location}; use the URL of Airflow itself"
        raise AirflowApiError(response.status_code, message)
    if response.status_code >= 400:
        raise AirflowApiError(
            response.status_code, f"{request.method} {request.url.path}: {response.status_code} {_detail(response)}"
        )
    try:
        return response.json() if response.content else None
    except ValueError:  # the URL leads to a web page, for example one of Airflow's or a proxy's login page
        message = f"{request.method} {request.url}: expected JSON, but the URL does not lead to Airflow's API"
        raise AirflowApiError(response.status_code, message) from None


def _detail(response: httpx.Response) -> str:
    """Return the text of an error: FastAPI wraps it in an object."""
    try:
        return str(response.json()["detail"])
    except (ValueError, KeyError, TypeError):
        return response.text


def _format_event(event: object) -> str:
    if not isinstance(event, dict):
        return str(event)
    details = {key: value for key, value in event.items() if key not in ("event", "timestamp", "level", "logger")}
    text = f"{event.get('timestamp') or ''} {event.get('level') or ''} {event.get('event', '')}".strip()
    return text + "".join(f" {key}={value}" for key, value in details.items() if value)
