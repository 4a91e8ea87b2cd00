"""The address of a Docker engine from an Airflow connection."""

from __future__ import annotations

import json

import pytest
from airflow.sdk import Connection

from paceline.airflow.engine_connection import declared_gpus, engine_address
from paceline.errors import InvalidInputError

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
