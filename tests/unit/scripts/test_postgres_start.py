"""``docker/postgres-start`` repeats the creation of the database after a failure; stubs stand for PostgreSQL."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

INITDB = """\
while [ "$1" != -D ]; do shift; done
mkdir "$2" && echo 16 >"$2/PG_VERSION" && cat >"$2/password"
"""
# The single-user server fails at its first start; the other one prints what it serves.
POSTGRES = """\
if [ "$1" = --single ]; then
  [ -e failed ] || { touch failed; exit 1; }
  cat >"$3/databases"
else
  exec cat "$2/password" "$2/databases" "$2/pg_hba.conf"
fi
"""


def test_first_start_that_failed_is_repeated(project: Path, tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, lines in {"initdb": INITDB, "postgres": POSTGRES}.items():
        (programs / name).write_text(f"#!/bin/sh\n{lines}")
        (programs / name).chmod(0o755)
    script = (project / "docker" / "postgres-start").read_text()
    script = script.replace("/usr/lib/postgresql/*/bin /usr/local/bin", str(programs))
    environment = {**os.environ, "PGDATA": str(tmp_path / "data"), "POSTGRES_PASSWORD": "secret"}

    def start() -> subprocess.CompletedProcess[str]:
        command = ["sh", "-c", script]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)

    assert start().returncode == 1
    assert not (tmp_path / "data").exists()
    complete = "secret\nCREATE DATABASE airflow\nhost all all all scram-sha-256\n"
    assert [start().stdout for _ in range(2)] == [complete, complete]
