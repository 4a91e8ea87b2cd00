"""Engines and registry logins from Airflow connections."""

from __future__ import annotations

import datetime
import ipaddress
import json
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from airflow.sdk import Connection
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from paceline.airflow.engine_connection import declared_gpus, default_client, engine_address, engine_hook
from paceline.errors import InvalidInputError, RuntimeUnavailableError
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


def write_certificate(folder):
    """Write a key and a certificate of 127.0.0.1, its own authority, as the files of Docker's clients."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "engine")])
    now = datetime.datetime.now(datetime.timezone.utc)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    for file in ("ca.pem", "cert.pem"):
        (folder / file).write_bytes(certificate.public_bytes(pem))
    (folder / "key.pem").write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))


@pytest.fixture
def secure_engine(monkeypatch, tmp_path):
    """Yield the worker's engine, which accepts only clients with the certificate in ``tmp_path``."""
    write_certificate(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=tmp_path / "ca.pem")
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    with Engine() as engine:
        engine.socket = context.wrap_socket(engine.socket, server_side=True)
        threading.Thread(target=engine.serve_forever, args=(0.01,), daemon=True).start()
        monkeypatch.setenv("DOCKER_HOST", engine.url)
        monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
        for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):  # the client prefers them to the certificate of Docker
            monkeypatch.delenv(name, raising=False)
        yield engine
        engine.shutdown()


@pytest.mark.parametrize(
    "make_client", [lambda: client_of_hook(None, None), lambda: client_of_settings(None, None), default_client]
)
def test_engine_of_the_environment_is_reached_with_its_certificates(make_client, secure_engine, monkeypatch, tmp_path):
    monkeypatch.setenv("DOCKER_TLS_VERIFY", "1")
    monkeypatch.setenv("DOCKER_CERT_PATH", str(tmp_path))
    client = make_client()
    assert client.base_url == secure_engine.url.replace("tcp", "https")
    assert client.ping()


def test_engine_of_the_environment_is_not_reached_without_its_certificates(secure_engine):
    with pytest.raises(RuntimeUnavailableError, match="no Docker engine responds at tcp://"):
        client_of_settings(None, None)


def test_folder_of_certificates_alone_does_not_switch_tls_on(engines, monkeypatch, tmp_path):
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
    monkeypatch.setenv("DOCKER_CERT_PATH", str(tmp_path / "none"))
    with pytest.raises(RuntimeUnavailableError, match="no Docker engine responds at tcp://"):
        client_of_settings(None, None)


def test_missing_certificates_are_rejected(engines, monkeypatch, tmp_path):
    monkeypatch.setenv("DOCKER_TLS_VERIFY", "1")
    monkeypatch.setenv("DOCKER_CERT_PATH", str(tmp_path / "none"))
    with pytest.raises(InvalidInputError, match=r"DOCKER_CERT_PATH: got '.*none', expected a folder with ca\.pem"):
        client_of_settings(None, None)
    assert client_of_settings("gate", None).ping(), "a connection has settings of its own"
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    with pytest.raises(RuntimeUnavailableError):
        client_of_settings(None, None)
