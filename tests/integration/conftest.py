"""The fixture of tests that run in every runtime."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.testing.runtime_contract.harness import fail_on_leftovers

from .jobs import MECHANISMS, ContainerHarness, Harness, PodHarness, ProcessHarness

KINDS = [pytest.param(name, marks=getattr(pytest.mark, name)) for name in ("docker", "kubernetes")]


@pytest.fixture(params=[*KINDS, *MECHANISMS])
def harness(request: pytest.FixtureRequest, tmp_path: Path, process_runtime_root: Path) -> Iterator[Harness]:
    """Yield a harness for each runtime, and fail a test whose jobs have left anything."""
    made: Harness
    if request.param == "docker":
        names = ("docker_client", "docker_host", "trainer_image")
        made = ContainerHarness(*map(request.getfixturevalue, names), folder=tmp_path)
    elif request.param == "kubernetes":
        made = PodHarness(*map(request.getfixturevalue, ("namespace", "trainer_image")), folder=tmp_path)
    else:
        made = ProcessHarness(process_runtime_root, request.param, folder=tmp_path)
    with fail_on_leftovers(made):
        yield made


@pytest.fixture
def pods(namespace: str, trainer_image: str, tmp_path: Path) -> Iterator[PodHarness]:
    """Yield a harness for pods, and fail a test whose jobs have left anything."""
    with fail_on_leftovers(PodHarness(namespace, trainer_image, tmp_path)) as harness:
        yield harness
