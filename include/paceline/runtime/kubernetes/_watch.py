"""Follows one pod through a watch of the cluster, instead of reading the pod again and again."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

from paceline.errors import PacelineError
from paceline.runtime.kubernetes._cluster import Cluster
from paceline.runtime.kubernetes._pod import removal

_WATCH_S = 15  # the server ends a watch after this time; the caller can then check its own time limit
_PAUSE_S = 0.5  # before the next request after an interrupted watch


def follow_pod(
    cluster: Cluster, name: str, since: Mapping[str, Any] | None = None, again_s: int = _WATCH_S
) -> Iterator[dict[str, Any] | None]:
    """Yield a pod as it is now, and after each change.

    Without a change, yield it again every ``again_s`` seconds. Yield ``None`` once if the pod does not exist any more,
    and end. The caller has to check the pod's ``uid`` if a pod of the same name may follow.

    Parameters
    ----------
    cluster:
        The pod's namespace.
    name:
        Name of the pod.
    since:
        The pod as the caller has read it: saves the request that reads it. ``None``: read it.
    again_s:
        Seconds after which an unchanged pod is yielded again.

    Raises
    ------
    RuntimeUnavailableError
        The cluster does not answer. An interrupted watch is resumed first.
    """
    pod: dict[str, Any] | None = None if since is None else dict(since)
    version = None if pod is None else pod["metadata"]["resourceVersion"]
    while True:
        if version is None:
            pod, version = _read(cluster, name)
        yield pod
        if pod is None:
            return
        for event in _events(cluster, name, version, again_s):
            if event["type"] == "ERROR":  # the version is too old, or the connection was interrupted: read the pod anew
                version = None
                break
            pod = event["object"] if event["type"] != "DELETED" else None
            version = event["object"]["metadata"]["resourceVersion"]
            yield pod
            if pod is None:
                return


def why_removed(cluster: Cluster, pod: Mapping[str, Any]) -> str:
    """Return why a pod is being deleted, or was deleted after it was read; empty if neither.

    The cluster repeats all changes since then, so the reason is known although the pod is gone.
    """
    version = ""
    for now in follow_pod(cluster, pod["metadata"]["name"], pod, again_s=1):
        if now is None or now["metadata"]["uid"] != pod["metadata"]["uid"]:
            return "the pod was deleted"
        before, version = version, now["metadata"]["resourceVersion"]
        if (reason := removal(now)) or version == before:
            return reason
    raise AssertionError


def _selected(name: str) -> dict[str, Any]:
    return {"field_selector": f"metadata.name={name}", "_preload_content": False}


def _read(cluster: Cluster, name: str) -> tuple[dict[str, Any] | None, str]:
    """Return the pod and a version from which it can be watched. A list has a current version, unlike an old pod."""
    found = cluster.call("read the pod", "list_namespaced_pod", cluster.namespace, **_selected(name))
    listed = json.loads(found.data)
    return next(iter(listed["items"]), None), listed["metadata"]["resourceVersion"]


def _events(cluster: Cluster, name: str, version: str, timeout_s: int) -> Iterator[dict[str, Any]]:
    """Yield the events of one watch until it ends; one of type ``ERROR`` if it was interrupted."""
    import urllib3.exceptions

    options = {"watch": True, "resource_version": version, "timeout_seconds": timeout_s, **_selected(name)}
    limits = {"_request_timeout": (10.0, timeout_s + 15.0)}
    interrupted = {"type": "ERROR"}
    try:
        response = cluster.call("watch the pod", "list_namespaced_pod", cluster.namespace, **options, **limits)
    except PacelineError as error:
        is_interrupted = isinstance(error.__cause__, urllib3.exceptions.HTTPError)
        if not is_interrupted and getattr(error.__cause__, "status", None) != 410:
            raise
        if is_interrupted:  # reading the pod then raises the error if the cluster is away
            time.sleep(_PAUSE_S)
        yield interrupted
        return
    rest = b""
    try:
        for data in response.stream(65536, decode_content=False):
            *lines, rest = (rest + data).split(b"\n")
            yield from map(json.loads, filter(None, lines))
    except (urllib3.exceptions.HTTPError, OSError):
        time.sleep(_PAUSE_S)
        yield interrupted
    finally:
        response.close()
