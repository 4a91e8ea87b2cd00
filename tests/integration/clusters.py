"""Commands in pods of the test cluster, and accounts that have only the rights that a test gives them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kubernetes.client import ApiClient, AuthenticationV1Api, CoreV1Api, RbacAuthorizationV1Api
from kubernetes.stream import stream
from tests.conftest import connect_cluster


def run_in_pod(namespace: str, pod: str, command: str, config: str | None = None) -> str:
    """Run a shell command in a pod, of the cluster that the file ``config`` names, and return its output.

    Raises ``kubernetes.client.ApiException`` if the pod's container does not run.
    """
    api = CoreV1Api(connect_cluster(config))  # `stream` changes its client
    words = ["/bin/sh", "-c", command]
    try:
        return str(stream(api.connect_get_namespaced_pod_exec, pod, namespace, command=words, stdout=True))
    except AttributeError as error:  # raised by the client while it handles the actual error, which has no body
        raise error.__context__ or error from None


def account(namespace: str, rules: Sequence[Mapping[str, Any]], name: str = "paceline") -> Callable[[], ApiClient]:
    """Create an account with the rights of these rules, and return the function that connects with it."""
    admin = connect_cluster()
    CoreV1Api(admin).create_namespaced_service_account(namespace, {"metadata": {"name": name}})
    role = {"metadata": {"name": name}, "rules": list(rules)}
    RbacAuthorizationV1Api(admin).create_namespaced_role(namespace, role)
    subject = {"kind": "ServiceAccount", "name": name, "namespace": namespace}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
    binding = {"metadata": {"name": name}, "roleRef": reference, "subjects": [subject]}
    RbacAuthorizationV1Api(admin).create_namespaced_role_binding(namespace, binding)
    request = {"spec": {"audiences": [], "expirationSeconds": 3600}}
    token = CoreV1Api(admin).create_namespaced_service_account_token(name, namespace, request).status.token

    def connect() -> ApiClient:
        client = connect_cluster()
        client.configuration.cert_file = client.configuration.key_file = None
        client.configuration.api_key = {"authorization": f"Bearer {token}"}
        client = ApiClient(client.configuration)
        who = AuthenticationV1Api(client).create_self_subject_review({}).status.user_info.username
        assert who == f"system:serviceaccount:{namespace}:{name}"
        return client

    return connect
