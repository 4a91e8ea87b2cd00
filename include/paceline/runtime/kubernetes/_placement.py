"""Chooses the nodes that may run a job's pod, as its ``KubernetesOptions`` say."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

from paceline.errors import InvalidInputError
from paceline.runtime._kubernetes_options import KubernetesOptions
from paceline.runtime.kubernetes._pod import label_value
from paceline.runtime.kubernetes._template import merge

_APART = "paceline/apart"  # a label: the pods with one value run on different nodes


def place(pod: Mapping[str, Any], options: KubernetesOptions) -> dict[str, Any]:
    """Return the manifest of a pod with its node or its nodes.

    >>> place({"spec": {}}, KubernetesOptions(node_selector={"pool": "gates"}))
    {'spec': {'nodeSelector': {'pool': 'gates'}}}
    """
    placed = copy.deepcopy(dict(pod))
    if options.node is not None:
        # A named node replaces the template's choice: the terms of two choices would be alternatives.
        placed["spec"].get("affinity", {}).pop("nodeAffinity", None)
        placed["spec"].pop("nodeSelector", None)
        fields = [{"key": "metadata.name", "operator": "In", "values": [options.node]}]
        required = {"nodeSelectorTerms": [{"matchFields": fields}]}
        placed = merge(placed, _affinity("nodeAffinity", required))
    if options.node_selector:
        placed = merge(placed, {"spec": {"nodeSelector": dict(options.node_selector)}})
    if options.apart is not None:
        labels = {_APART: label_value(options.apart)}
        required_apart = [{"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": labels}}]
        placed = merge(placed, {"metadata": {"labels": labels}, **_affinity("podAntiAffinity", required_apart)})
    return placed


def node_filter(options: KubernetesOptions) -> dict[str, str]:
    """Return the arguments of ``list_node`` that select the nodes of a job."""
    filters = {}
    if options.node is not None:
        filters["field_selector"] = f"metadata.name={options.node}"
    if options.node_selector:
        filters["label_selector"] = ",".join(f"{name}={value}" for name, value in options.node_selector.items())
    return filters


def largest(nodes: Mapping[str, list[float]], options: KubernetesOptions) -> dict[str, float]:
    """Return the largest amount of each resource among the job's nodes. A pool without nodes may get some for the job.

    Raises InvalidInputError if the job names a node that the cluster does not have.
    """
    if options.node is not None and not nodes["cpu"]:
        raise InvalidInputError("node", options.node, "the name of a node of the cluster")
    return {resource: max(amounts, default=math.inf) for resource, amounts in nodes.items()}


def runs_there(pod: Mapping[str, Any], options: KubernetesOptions) -> bool:
    """Return whether a pod runs on the job's node, or was started with these labels of nodes."""
    selector = pod["spec"].get("nodeSelector") or {}
    is_there = options.node in (None, pod["spec"].get("nodeName"))
    return is_there and options.node_selector.items() <= selector.items()


def _affinity(kind: str, required: object) -> dict[str, Any]:
    return {"spec": {"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": required}}}}
