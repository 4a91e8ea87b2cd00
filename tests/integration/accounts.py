"""Accounts of the test cluster that have only the rights that a test gives them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from kubernetes.client import ApiClient, AuthenticationV1Api, CoreV1Api, RbacAuthorizationV1Api
from tests.conftest import connect_cluster

GUIDE = Path(__file__).parents[2] / "docs" / "kubernetes.md"


def guide_block(name: str) -> list[dict[str, Any]]:
    """Return the YAML documents of the block in the guide that begins with ``# NAME``."""
    (text,) = re.findall(rf"```yaml\n# {name}(.*?)```", GUIDE.read_text(), re.DOTALL)
    return list(yaml.safe_load_all("#" + text))


def account(namespace: str, rules: Sequence[Mapping[str, Any]]) -> Callable[[], ApiClient]:
    """Create an account with a Role that has these rules, and return a function that connects with its token."""
    admin = connect_cluster()
    CoreV1Api(admin).create_namespaced_service_account(namespace, {"metadata": {"name": "paceline"}})
    role = {"metadata": {"name": "paceline"}, "rules": list(rules)}
    RbacAuthorizationV1Api(admin).create_namespaced_role(namespace, role)
    subject = {"kind": "ServiceAccount", "name": "paceline", "namespace": namespace}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "paceline"}
    binding = {"metadata": {"name": "paceline"}, "roleRef": reference, "subjects": [subject]}
    RbacAuthorizationV1Api(admin).create_namespaced_role_binding(namespace, binding)
    request = {"spec": {"audiences": [], "expirationSeconds": 3600}}
    token = CoreV1Api(admin).create_namespaced_service_account_token("paceline", namespace, request).status.token

    def connect() -> ApiClient:
        client = connect_cluster()
        client.configuration.cert_file = client.configuration.key_file = None
        client.configuration.api_key = {"authorization": f"Bearer {token}"}
        client = ApiClient(client.configuration)
        who = AuthenticationV1Api(client).create_self_subject_review({}).status.user_info.username
        assert who == f"system:serviceaccount:{namespace}:paceline"
        return client

    return connect
