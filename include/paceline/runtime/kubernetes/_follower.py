"""Follows the log of a job's pod in a thread, and reads the records in it. No line is lost or read twice."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time

from paceline.errors import JobLostError, PacelineError, RuntimeUnavailableError
from paceline.runtime._line_queue import LineQueue
from paceline.runtime.kubernetes._cluster import CONTAINER, Cluster, read_pod
from paceline.runtime.kubernetes._pod import container_status, disruption, end_reason
from paceline.runtime.kubernetes._records import Records

log = logging.getLogger(__name__)

_READ_S = 30.0  # reconnect after this time without a record: a running job sends one every second
_OVERLAP_S = 5.0
_BACKOFF_S = (0.1, 0.2, 0.5, 1.0, 2.0)
# A node that follows many logs has no watcher left for another one: it sends what there is, and ends the connection.
_SHORT_S = 5.0


class PodFollower:
    """Reads one pod's log until the run of the job ends.

    Parameters
    ----------
    cluster:
        The pod's namespace.
    pod:
        Name of the pod.
    tail:
        Number of the newest records to read first; ``None`` for all.
    """

    def __init__(self, cluster: Cluster, pod: str, tail: int | None) -> None:
        self._cluster, self._pod, self._tail = cluster, pod, tail
        self.records = Records()
        self.ended = threading.Event()
        self.disruption = ""  # why the cluster removes the pod, as far as this was seen
        self._after = 0  # runs up to this number are over
        self._queue = LineQueue()
        self._closed = threading.Event()
        self._connected_s = time.monotonic()
        self._restarts: int | None = None

    def start(self, after: int = 0) -> None:
        """Start the thread. It ends with the end of the next run ``after`` the one with this number."""
        self._after = after
        self.ended.clear()
        threading.Thread(target=self._run, name=f"paceline-log-{self._pod}", daemon=True).start()

    def skip(self) -> None:
        """Skip the records that have been written so far."""
        where = (self._pod, self._cluster.namespace)
        options = {"container": CONTAINER, "tail_lines": 1, "_preload_content": False}
        newest = self._cluster.call("read the job's output", "read_namespaced_pod_log", *where, **options)
        self.records.feed(newest.data.rstrip(b"\n"))

    def take_lines(self) -> list[str]:
        """Return the lines that have arrived since the last call."""
        return self._queue.take()

    def close(self) -> None:
        """End the thread within seconds; the pod continues."""
        self._closed.set()
        self._queue.close()

    def _run(self) -> None:
        failures = shorts = 0
        while not self._closed.is_set() and not self._has_ended():
            began_s = time.monotonic()
            try:
                self._read_connection()
                failures, shorts = 0, shorts + 1 if time.monotonic() - began_s < _SHORT_S else 0
            except RuntimeUnavailableError as error:
                if failures == 1:  # the first one is often only a cut connection, and does not say why it was cut
                    log.warning("The job's output is not available now, and remains in the pod's log. %s", error)
                failures += 1
            except JobLostError:
                break
            except PacelineError as error:
                log.warning("Reading the job's output failed: %s", error)
                failures += 1
            self._closed.wait(_BACKOFF_S[min(failures or shorts, len(_BACKOFF_S) - 1)])
        with contextlib.suppress(PacelineError):  # the pod may be about to be deleted
            self.disruption = disruption(read_pod(self._cluster, self._pod) or {"status": {}}) or self.disruption
        self.ended.set()

    def _has_ended(self) -> bool:
        run = self.records.run
        return run.get("state") == "exited" and run["number"] > self._after

    def _read_connection(self) -> None:
        """Read from one connection until it ends. A connection without records times out, which is no error."""
        pod = read_pod(self._cluster, self._pod)
        if pod is None:
            raise JobLostError("the pod was deleted")
        self.disruption = disruption(pod)
        if reason := end_reason(pod):
            raise JobLostError(reason)
        restarts = int(container_status(pod).get("restartCount", 0))
        if self._restarts is not None and restarts > self._restarts:
            self._read_log(follow=False, previous=True)  # what the killed container wrote last
        self._restarts = restarts
        self._read_log(follow=True, previous=False)

    def _read_log(self, *, follow: bool, previous: bool) -> None:
        import urllib3.exceptions

        options: dict[str, object] = {"container": CONTAINER, "follow": follow, "previous": previous}
        if self.records.number:
            options["since_seconds"] = math.ceil(time.monotonic() - self._connected_s + _OVERLAP_S)
        elif self._tail is not None:
            options["tail_lines"] = self._tail
        request = "read the job's output"
        response = self._cluster.call(
            request,
            "read_namespaced_pod_log",
            self._pod,
            self._cluster.namespace,
            **options,
            _preload_content=False,
            _request_timeout=(10.0, _READ_S),
        )
        rest = b""
        try:
            for data in response.stream(65536, decode_content=False):
                *lines, rest = (rest + data).split(b"\n")
                self._queue.put([text for line in lines for text in self.records.feed(line)])
                self._connected_s = time.monotonic()
                if self._closed.is_set() or self._has_ended():
                    return
        except urllib3.exceptions.ReadTimeoutError:
            return
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise RuntimeUnavailableError(f"could not {request}: it was interrupted: {error}") from error
        finally:
            response.close()
