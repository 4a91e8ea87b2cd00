"""Adds a job's pod to a user's template of a pod."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def merge(template: Mapping[str, Any], pod: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``pod`` with everything that only ``template`` says. Where both say something, the pod's word counts.

    Lists, such as volumes or tolerations, are joined, and list entries of the same name are merged.

    >>> merged = merge({"spec": {"nodeSelector": {"pool": "train"}, "restartPolicy": "Never"}},
    ...                {"spec": {"restartPolicy": "Always", "containers": [{"name": "job"}]}})
    >>> merged["spec"]["nodeSelector"], merged["spec"]["restartPolicy"]
    ({'pool': 'train'}, 'Always')
    """
    both = {name: _merge_values(template[name], pod[name]) for name in template.keys() & pod.keys()}
    return {**template, **pod, **both}


def _merge_values(template: Any, pod: Any) -> Any:
    if isinstance(template, Mapping) and isinstance(pod, Mapping):
        return merge(template, pod)
    if isinstance(template, list) and isinstance(pod, list):
        named = {_name(one): one for one in template if _name(one) is not None}
        joined = [merge(named.pop(_name(one)), one) if _name(one) in named else one for one in pod]
        return [*joined, *named.values(), *(one for one in template if _name(one) is None)]
    return pod


def _name(entry: Any) -> str | None:
    return entry.get("name") if isinstance(entry, Mapping) else None
