"""Engines and registry logins from Airflow connections."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from airflow.sdk import Connection

from paceline.airflow.engine_connection import declared_gpus, engine_address, engine_hook
from paceline.errors import InvalidInputError
from paceline.operators import Docker

TLS = {"tls_ca_cert": "/ca.pem", "tls_client_cert": "/cert.pem", "tls_client_key": "/key.pem"}
FILES = {"ca_cert": "/ca.pem", "client_cert": "/cert.pem", "client_key": "/key.pem"}


def connection(extra="", **fields):
    return Connection(conn_id="gate", conn_type="generic", extra=extra, **fields)


@pytest.mark.parametrize(
    ("fields", "url"),
    [
        ({"host": "unix:///run/gate.sock"}, "unix:///run/gate.sock"),
        ({"host": "/run/gate.sock"}, "unix:///run/gate.sock"),
        ({"host": "ssh://ml@gate"}, "ssh://ml@gate"),
        ({"host": "gate"}, "tcp://gate:2375"),
        ({"host": "gate", "port": 4000}, "tcp://gate:4000"),
    ],
)
def test_host_may_be_a_url_a_socket_or_a_name(fields, url):
    assert engine_address("gate", connection(**fields)) == (url, None)


def test_tls_is_configured_by_extras_and_verified_by_default():
    address = engine_address("gate", connection(json.dumps(TLS), host="gate"))
    assert address == ("tcp://gate:2376", {**FILES, "verify": True})
    unverified = engine_address("gate", connection(json.dumps({**TLS, "tls_verify": False}), host="gate"))
    assert unverified[1]["verify"] is False


@pytest.mark.parametrize(
    ("fields", "message"),
    [({}, "a connection with a host"), ({"host": "gate", "extra": '{"tls_ca_cert": "/ca.pem"}'}, "tls_client_key")],
)
def test_incomplete_connection_is_rejected(fields, message):
    with pytest.raises(InvalidInputError, match=message):
        engine_address("gate", connection(**fields))


def test_extra_declares_the_number_of_gpus():
    assert declared_gpus("gate", connection(host="gate")) == 0
    assert declared_gpus("gate", connection('{"gpus": 4}', host="gate")) == 4
    with pytest.raises(InvalidInputError, match=r"engine_conn_id: got 'gate', .*'gpus' is a whole number, not '4'"):
        declared_gpus("gate", connection('{"gpus": "4"}', host="gate"))


class Engine(ThreadingHTTPServer):
    """A server that answers a connecting Docker client and accepts every login."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), EngineHandler)
        self.requests = []
        self.logins = []

    @property
    def url(self):
        return f"tcp://127.0.0.1:{self.server_port}"


class EngineHandler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.requests.append(self.path)
        self.respond(b"OK" if self.path.endswith("/_ping") else b'{"ApiVersion": "1.44"}')

    def do_POST(self):
        self.server.requests.append(self.path)
        login = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.logins.append((login["serveraddress"], login["username"], login["password"]))
        self.respond(b'{"Status": "Login Succeeded"}')

    def respond(self, body):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Do not log requests."""


@pytest.fixture
def engines(monkeypatch, tmp_path):
    """Yield the engine of the connection ``gate`` and the worker's engine; the connection ``hub`` has a login."""
    with Engine() as gate, Engine() as worker:
        for engine in (gate, worker):
            threading.Thread(target=engine.serve_forever, args=(0.01,), daemon=True).start()
        registry = {"conn_type": "docker", "host": "hub.example", "port": 5000, "login": "ml", "password": "secret"}
        monkeypatch.setenv("AIRFLOW_CONN_GATE", json.dumps({"conn_type": "generic", "host": gate.url}))
        monkeypatch.setenv("AIRFLOW_CONN_HUB", json.dumps(registry))
        monkeypatch.setenv("DOCKER_HOST", worker.url)
        monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))  # no logins of the local user
        yield gate, worker
        gate.shutdown()
        worker.shutdown()


def client_of_hook(engine_conn_id, docker_conn_id):
    return engine_hook(engine_conn_id, docker_conn_id).api_client


def client_of_settings(engine_conn_id, docker_conn_id):
    return Docker(engine_conn_id=engine_conn_id, docker_conn_id=docker_conn_id).connect()


@pytest.mark.parametrize("make_client", [client_of_hook, client_of_settings])
@pytest.mark.parametrize("engine_conn_id", ["gate", None])
@pytest.mark.parametrize(("docker_conn_id", "logins"), [("hub", [("hub.example:5000", "ml", "secret")]), (None, [])])
def test_engine_and_registry_login_have_separate_connections(
    make_client, engine_conn_id, docker_conn_id, logins, engines
):
    used, unused = engines if engine_conn_id else reversed(engines)
    client = make_client(engine_conn_id, docker_conn_id)
    assert client.base_url == used.url.replace("tcp", "http")
    assert used.logins == logins
    assert unused.requests == []
