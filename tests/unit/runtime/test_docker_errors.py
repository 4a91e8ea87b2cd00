"""Errors of the Docker client become errors of Paceline."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from paceline.errors import RuntimeUnavailableError
from paceline.runtime.docker_errors import engine_call


class SshError(Exception):
    """As paramiko's base class of errors. The package is optional, so the tests may run without it."""


def test_ssh_server_that_refuses_a_session_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "paramiko", SimpleNamespace(SSHException=SshError))
    message = r"could not list containers over SSH: Connect failed; .*\(MaxSessions in sshd_config\)"
    with pytest.raises(RuntimeUnavailableError, match=message), engine_call("list containers"):
        raise SshError("Connect failed")
