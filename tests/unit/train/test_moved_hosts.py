"""Workers connect to a parameter server that has moved, over real sockets."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path

import pytest

from paceline.train.job import ENV_MOVED_HOSTS, current_address
from paceline.train.parameter_server import peer
from paceline.train.parameter_server.peer import DisconnectedError, connect, listen

NAME = "parameter-server.invalid"  # no name server knows it


def test_worker_connects_to_the_new_address_of_a_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    moved = tmp_path / "moved.json"
    monkeypatch.setenv(ENV_MOVED_HOSTS, str(moved))
    listener = listen("127.0.0.1", 0)
    port = listener.address[1]
    accepted = threading.Thread(target=lambda: listener.accept().send_bytes(b"[0, {}]"))
    accepted.start()
    with pytest.raises(DisconnectedError):
        connect(NAME, port, b"")
    moved.write_text(json.dumps({NAME: "127.0.0.1"}))
    connected = connect(NAME, port, b"")
    assert connected.receive() == {}
    accepted.join()
    connected.close()
    listener.close()


@pytest.mark.parametrize("content", [None, "", "[]", '{"other": "192.0.2.1"}'])
def test_host_that_has_not_moved_keeps_its_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: str | None
) -> None:
    monkeypatch.setenv(ENV_MOVED_HOSTS, str(tmp_path / "moved.json"))
    if content is not None:
        (tmp_path / "moved.json").write_text(content)
    assert current_address(NAME) == NAME
    monkeypatch.delenv(ENV_MOVED_HOSTS)
    assert current_address(NAME) == NAME


def test_address_that_does_not_answer_is_given_up_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer, "_CONNECT_S", 0.2)
    with socket.socket() as silent, socket.socket() as first, socket.socket() as second:
        silent.bind(("127.0.0.1", 0))
        silent.listen(0)
        for one in (first, second):  # they fill the queue of connections: packets of others are dropped
            one.setblocking(False)
            one.connect_ex(silent.getsockname())
        with pytest.raises(DisconnectedError, match="timed out"):
            connect("127.0.0.1", silent.getsockname()[1], b"")
