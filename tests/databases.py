"""Real database servers for tests: PostgreSQL and MariaDB, if server, Airflow provider and driver are installed.

``database_server`` skips the test otherwise.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import BaseHook
from demo.airflow_process import free_port

from tests.waiting import until


@contextmanager
def database_server(name: str) -> Iterator[dict[str, Any]]:
    """Start ``"postgresql"`` or ``"mariadb"``, yield its Airflow connection, and stop the server."""
    folder, port = Path("/tmp") / f"paceline-{name}-{os.getpid()}", free_port()  # a socket's path is short
    if name == "postgresql":
        program = _find("postgres", "airflow.providers.postgres.hooks.postgres")
        user = _as_user("postgres", folder)
        prepare = [str(Path(program).with_name("initdb")), "-D", f"{folder}/data", "-A", "trust", "-U", "paceline"]
        start = [
            program,
            "-D",
            f"{folder}/data",
            "-p",
            str(port),
            "-k",
            str(folder),
            "-c",
            "listen_addresses=127.0.0.1",
        ]
        known = {"conn_type": "postgres", "login": "paceline", "schema": "postgres"}
    else:
        program = _find("mariadbd", "airflow.providers.mysql.hooks.mysql", "MySQLdb")
        user = _as_user("mysql", folder)
        options = ["--no-defaults", f"--datadir={folder}/data"]
        prepare = ["mariadb-install-db", *options, "--auth-root-authentication-method=normal"]
        start = [program, *options, f"--socket={folder}/s", f"--port={port}", "--bind-address=127.0.0.1"]
        known = {"conn_type": "mysql", "login": "root", "schema": "test"}
    with (folder.with_suffix(".log")).open("wb") as log:
        subprocess.run([*user, *prepare], check=True, stdout=log, stderr=log, cwd=folder)
        process = subprocess.Popen([*user, *start], stdout=log, stderr=log, cwd=folder)
    try:
        connection = {**known, "host": "127.0.0.1", "port": port}
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("AIRFLOW_CONN_STORE", json.dumps(connection))
            until(_is_up, folder.name)
        yield connection
    finally:
        process.send_signal(signal.SIGQUIT)  # with SIGTERM, PostgreSQL would wait for its clients
        process.wait(60)
        shutil.rmtree(folder)
        folder.with_suffix(".log").unlink()


def _find(name: str, *modules: str) -> str:
    """Return the path of a server's program; skip the test if it, its provider or its driver is missing."""
    for module in modules:
        pytest.importorskip(module, reason=f"{module} is not installed", exc_type=ImportError)
    folders = [*map(str, Path("/usr/lib/postgresql").glob("*/bin")), "/usr/sbin", os.environ["PATH"]]
    found = shutil.which(name, path=os.pathsep.join(folders))
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def _as_user(name: str, folder: Path) -> list[str]:
    """Create the folder for this user, and return the start of the user's commands. The servers do not run as root."""
    folder.mkdir()
    if os.getuid() != 0:
        return []
    shutil.chown(folder, name)
    return ["setpriv", f"--reuid={name}", f"--regid={name}", "--clear-groups"]


def _is_up() -> bool:
    try:
        BaseHook.get_hook("store").get_conn().close()
    except Exception:
        return False
    return True
