"""One round of each fault of ``benchmarks.pod_faults`` that needs no more than a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from benchmarks.pod_faults.__main__ import run_round
from benchmarks.pod_faults.faults import FAULTS, none

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(600)]
SEED = "1"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, trainer_image: str) -> Any:
    """Return the model of an undisturbed run."""
    figures = run_round(none, SEED, tmp_path_factory.mktemp("undisturbed") / "round", trainer_image)
    assert figures["problems"] == []
    return figures["model"]


@pytest.mark.parametrize("fault", [name for name in FAULTS if name != "kubelet away"])
def test_job_survives(fault: str, model: Any, trainer_image: str, tmp_path: Path) -> None:
    figures = run_round(FAULTS[fault], f"{SEED} {fault}", tmp_path / "round", trainer_image, model)
    assert figures["problems"] == [], figures
