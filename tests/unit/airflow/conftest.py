from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.airflow.strangers import HALL, MODULE, install

from paceline.installed import installed


@pytest.fixture
def hall(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Install a stranger's package with a runtime for as long as the test runs; yield the folder of its jobs' rooms."""
    (tmp_path / f"{MODULE}.py").write_text(HALL)
    monkeypatch.syspath_prepend(tmp_path)
    install(tmp_path, "hall", f"hall = {MODULE}:Hall")
    yield tmp_path
    sys.modules.pop(MODULE, None)
    installed.cache_clear()
