"""Jobs as pods of a Kubernetes cluster."""

from paceline.runtime.kubernetes._device_pods import FirstPodJob
from paceline.runtime.kubernetes._job import PodJob
from paceline.runtime.kubernetes._runtime import KubernetesRuntime

__all__ = ["FirstPodJob", "KubernetesRuntime", "PodJob"]
