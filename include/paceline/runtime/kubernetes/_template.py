"""Adds a job's pod to a user's template of a pod."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from paceline.errors import InvalidInputError
from paceline.runtime.kubernetes._cluster import CONTAINER

_SELINUX_TYPES = (None, "", "container_t", "container_init_t", "container_kvm_t")  # of the Pod Security Standards
# Which values of a container's security context give it no further rights: those of the container take precedence over
# the settings of the pod.
_HARMLESS: Mapping[str, Callable[[Any], bool]] = {
    "allowPrivilegeEscalation": lambda value: not value,
    "appArmorProfile": lambda value: value.get("type") != "Unconfined",
    "capabilities": lambda value: not value.get("add"),
    "privileged": lambda value: not value,
    "procMount": lambda value: value == "Default",
    "runAsNonRoot": lambda value: value is True,
    "runAsUser": lambda value: value != 0,
    "seLinuxOptions": lambda value: value.get("type") in _SELINUX_TYPES,
    "seccompProfile": lambda value: value.get("type") != "Unconfined",
}


def check_template(template: Mapping[str, Any]) -> None:
    """Raise InvalidInputError if a template gives the job's container rights that the job's settings do not give.

    >>> context = {"capabilities": {"drop": ["ALL"]}, "runAsUser": 0}
    >>> check_template({"spec": {"containers": [{"name": "job", "securityContext": context}]}})
    Traceback (most recent call last):
    paceline.errors.InvalidInputError: pod_template_file: got 'securityContext.runAsUser: 0', \
expected a container 'job' without it: it has the rights of all jobs, and `user` is its user
    """
    for container in (template.get("spec") or {}).get("containers") or ():
        context = (container.get("securityContext") or {}) if container.get("name") == CONTAINER else {}
        for name, value in context.items():
            if value is not None and name in _HARMLESS and not _HARMLESS[name](value):
                accepted = "a container 'job' without it: it has the rights of all jobs, and `user` is its user"
                raise InvalidInputError("pod_template_file", f"securityContext.{name}: {value}", accepted)


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
