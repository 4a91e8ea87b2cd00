"""``Kubernetes``: settings of jobs as pods of a cluster."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from paceline.airflow.values import Reader, boolean, memory_bytes, text
from paceline.errors import InvalidInputError
from paceline.extras import require
from paceline.runtime.checks import check_user

from ._base import RuntimeSettings, gpu_count, image, size

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

    from paceline.fleet import Fleet, Machine
    from paceline.fleet.node_usage import NodeUsage
    from paceline.runtime import JobSpec
    from paceline.runtime.kubernetes import KubernetesRuntime

START_TIMEOUT_S = 300.0
_GAUGE_START_S = 60.0  # a node on which a small pod does not start within this time does not respond
_GAUGE_LEASE_S = 86_400.0

# What the cluster writes into each pod that has an account.
_OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def _own_namespace() -> str:
    """Return the namespace of this process's pod; empty if it does not run in a pod with an account."""
    return _OWN_NAMESPACE.read_text().strip() if _OWN_NAMESPACE.exists() else ""


def _text_if_any(field: str, value: object) -> str | None:
    return None if value is None else text(field, value, "text, or None")


@dataclass(frozen=True, kw_only=True)
class Kubernetes(RuntimeSettings):
    """Run the job in a pod of a Kubernetes cluster, whose CPU limit changes in place. Needs Kubernetes 1.33 or newer.

    The pod keeps to the *restricted* Pod Security Standard. It requests its memory limit in full and, without
    ``reserve``, little CPU.

    Parameters
    ----------
    image:
        Container image with Python and the script's dependencies. Example: ``"registry.example/trainer:3"``.
        (templated)
    kubernetes_conn_id:
        Airflow connection to the cluster, of the Kubernetes provider. If it does not exist, the worker's own cluster or
        ``$KUBECONFIG``. Example: ``"gpu_cluster"``. (templated)
    namespace:
        Namespace of the pod; by default, that of the connection, else that of the worker's own pod, else ``default``.
        Example: ``"training"``. (templated)
    pod_template_file:
        YAML file with a pod to which the job is added, for node selectors, tolerations, volumes, labels, or secrets for
        image registries. A container with the name ``job`` is the job's. Example: ``"/opt/airflow/pod.yaml"``.
        (templated)
    pull:
        Pull the image before each start, even if the node has it. Example: ``True``.
    reserve:
        Request the allocation, so that the node reserves these cores for the job. A larger allocation then waits until
        the node has room; until then the job continues on the earlier one. By default, busy pods of a node share its
        cores. Example: ``True``.
    gpus:
        Number of GPUs for the job alone. A training that allocates whole GPUs (``quantum=1``) may have a larger
        ``max_devices``: each further GPU is in a pod of its own, which joins and leaves. Example: ``2``.
    gpu_resource:
        Name of the cluster's resource that stands for a GPU; ``None`` if the pod template claims the GPUs of each pod,
        for example with a DRA claim. Example: ``"amd.com/gpu"``. (templated)
    memory:
        Memory limit, which the node also reserves, in bytes or as text; ``None`` for no limit. Example: ``"16g"``.
        (templated)
    disk:
        Limit on the job's files, in bytes or as text; ``None`` for no limit. The node evicts a pod that exceeds it.
        Example: ``"50g"``. (templated)
    read_only:
        Make the container's root file system read-only: the job can write only to its own folders, and to ``/tmp`` and
        ``/dev/shm``, which are in memory. Example: ``True``.
    user:
        ``uid:gid`` in the container; an unprivileged user by default. Example: ``"1000:1000"``. (templated)
    allow_root:
        Allow root (uid 0) as ``user``, unless ``[paceline] allow_root`` is false. Example: ``True``.

    Examples
    --------
    >>> from paceline.operators import DeadlineTrainingOperator, Kubernetes
    >>> train = DeadlineTrainingOperator(
    ...     task_id="train", script="train.py", deadline="20m", runtime=Kubernetes(image="trainer:3", memory="16g")
    ... )
    >>> Kubernetes(namespace="")
    Traceback (most recent call last):
    paceline.errors.InvalidInputError: runtime.namespace: got '', expected text, or None
    """

    name = "kubernetes"
    loses_files = True
    template_fields: ClassVar[Sequence[str]] = (
        "image",
        "kubernetes_conn_id",
        "namespace",
        "pod_template_file",
        "gpu_resource",
        "memory",
        "disk",
        "user",
    )
    readers: ClassVar[Mapping[str, Reader]] = {
        "image": image,
        "kubernetes_conn_id": text,
        "namespace": _text_if_any,
        "pod_template_file": _text_if_any,
        "pull": boolean,
        "reserve": boolean,
        "gpus": gpu_count,
        "gpu_resource": _text_if_any,
        "memory": size,
        "disk": size,
        "read_only": boolean,
        "allow_root": boolean,
    }
    forms_teams = True
    machine_fields: ClassVar[Sequence[str]] = ("gpus",)

    image: str = "paceline-trainer:latest"
    kubernetes_conn_id: str = "kubernetes_default"
    namespace: str | None = None
    pod_template_file: str | None = None
    pull: bool = False
    reserve: bool = False
    gpus: int = 0
    gpu_resource: str | None = "nvidia.com/gpu"
    memory: int | str | None = "4g"
    disk: int | str | None = "20g"
    read_only: bool = False
    user: str = "65532:65532"
    allow_root: bool = False

    def read(self, field: str, value: Any) -> Any:
        """Return the value of a field, or raise InvalidInputError."""
        if field == "user":
            check_user(value, self.allow_root, "runtime.user")
        return super().read(field, value)

    @property
    def names_engine(self) -> bool:
        """Always: a connection names the cluster."""
        return True

    def open(self) -> KubernetesRuntime:
        """Return the runtime."""
        return self._runtime(START_TIMEOUT_S)

    def _runtime(self, start_timeout_s: float) -> KubernetesRuntime:
        require("kubernetes", "kubernetes")
        from paceline.runtime.kubernetes import KubernetesRuntime

        return KubernetesRuntime(
            self.connect,
            namespace=self.namespace or self._hook().get_namespace() or _own_namespace() or "default",
            template=self._template(),
            pull=self.pull,
            reserve=self.reserve,
            gpu_resource=self.gpu_resource,
            scatters_above=self.gpus or None,
            max_output_bytes=memory_bytes("runtime.disk", self.disk) or sys.maxsize,
            start_timeout_s=start_timeout_s,
        )

    def on_machine(self, fleet: Fleet, machine: Machine, *, gpus: int) -> Kubernetes:
        """Return the settings for a task's pods on a node: its cluster and GPUs. Other limits remain those of each pod.

        >>> from paceline.fleet import Fleet, Machine
        >>> gate = Machine(name="gate", kind="nano", cores=4, memory_gib=4, node="n1", kubernetes_conn_id="west")
        >>> fleet = Fleet(machines=[gate], parameter_server=gate)
        >>> Kubernetes(kubernetes_conn_id="east").on_machine(fleet, gate, gpus=0).kubernetes_conn_id
        'west'
        """
        if not machine.is_node:
            accepted = "the name of a node, or node_selector with labels of nodes, because the runtime is 'kubernetes'"
            raise InvalidInputError(f"fleet.{machine.name}.node", None, accepted)
        return self._with_machine({"gpus": gpus})._in_cluster_of(machine)

    def gauge(
        self, fleet: Fleet, machine: Machine, *, name: str, labels: Mapping[str, str], apart: str | None = None
    ) -> NodeUsage:
        """Return what measures the usage of a node, in a pod on it."""
        from paceline.fleet.node_usage import NodeUsage
        from paceline.runtime import JobSpec

        spec = self.extend(JobSpec(name=name, command=[], devices=1.0, labels=labels, lease_s=_GAUGE_LEASE_S))
        return NodeUsage(self._in_cluster_of(machine)._runtime(_GAUGE_START_S), spec, machine, apart)

    def _in_cluster_of(self, machine: Machine) -> Kubernetes:
        return self._copy({"kubernetes_conn_id": machine.kubernetes_conn_id or self.kubernetes_conn_id})

    def connect(self) -> ApiClient:
        """Return a client with the credentials of the connection, which are read anew."""
        return self._hook().get_conn()

    def names_cluster(self) -> bool:
        """Return whether a connection, ``$KUBECONFIG``, its default file or this process's own pod names a cluster."""
        variables = ("KUBECONFIG", "KUBERNETES_SERVICE_HOST")
        is_named = any(map(os.environ.get, variables)) or Path("~/.kube/config").expanduser().exists()
        return is_named or bool(self._hook().conn_extras)

    def extend(self, spec: JobSpec) -> JobSpec:
        """Return the specification of a job with the image, the limits and the user."""
        return replace(
            spec,
            image=self.image,
            gpus=self.gpus,
            memory_bytes=memory_bytes("runtime.memory", self.memory),
            disk_bytes=memory_bytes("runtime.disk", self.disk),
            read_only=self.read_only,
            user=self.user,
            allow_root=self.allow_root,
        )

    def _hook(self) -> Any:
        from airflow.providers.cncf.kubernetes.hooks.kubernetes import KubernetesHook
        from airflow.sdk.exceptions import AirflowException

        try:
            hook = KubernetesHook(conn_id=self.kubernetes_conn_id)
            hook.conn_extras  # noqa: B018, reads the connection
            return hook
        except AirflowException as error:
            accepted = f"a connection to a cluster ({error})"
            raise InvalidInputError("runtime.kubernetes_conn_id", self.kubernetes_conn_id, accepted) from error

    def _template(self) -> dict[str, Any]:
        if self.pod_template_file is None:
            return {}
        import yaml

        path = Path(self.pod_template_file)
        try:
            content = yaml.safe_load(path.read_text())
        except (OSError, ValueError, yaml.YAMLError) as error:
            raise InvalidInputError("runtime.pod_template_file", str(path), f"a readable YAML file ({error})") from None
        if not isinstance(content, dict) or not isinstance(content.get("spec", {}), dict):
            raise InvalidInputError("runtime.pod_template_file", str(path), "a pod with metadata and a spec")
        return content
