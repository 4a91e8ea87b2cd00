"""Jobs as pods of a Kubernetes cluster."""

from paceline.runtime.kubernetes.job import PodJob
from paceline.runtime.kubernetes.runtime import KubernetesRuntime

__all__ = ["KubernetesRuntime", "PodJob"]
