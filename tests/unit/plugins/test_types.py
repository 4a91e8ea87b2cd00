"""The types of the pages are those of the models: ``make types`` has been run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.plugins.web.__main__ import schema

PAGES = Path(__file__).parents[3] / "plugins" / "ui"
# The Node that `make ui` may have installed into the environment comes before the machine's, as in the Makefile.
PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
NPM = shutil.which("npm", path=PATH)


def test_schema_is_written_to_a_file(tmp_path: Path) -> None:
    """The standard output may have warnings of Airflow."""
    path = tmp_path / "schema.json"
    subprocess.run([sys.executable, "-m", "paceline.plugins.web", str(path)], check=True, timeout=120)
    assert json.loads(path.read_text()) == schema()


@pytest.mark.skipif(not (NPM and (PAGES / "node_modules").exists()), reason="the pages' packages are not installed")
def test_types_of_the_pages_are_those_of_the_models(tmp_path: Path) -> None:
    source, types = tmp_path / "schema.json", tmp_path / "contract.ts"
    source.write_text(json.dumps(schema()))
    command = [str(NPM), "--silent", "--prefix", str(PAGES), "run", "types", "--"]
    environment = {**os.environ, "PATH": PATH}
    subprocess.run([*command, "--input", str(source), "--output", str(types)], check=True, timeout=120, env=environment)
    assert types.read_text() == (PAGES / "src" / "contract.ts").read_text(), "run make types"
