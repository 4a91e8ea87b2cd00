"""Entry points of installed packages: two packages cannot declare one name."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from paceline import installed as module
from paceline.errors import InvalidInputError
from paceline.installed import RUNTIMES, installed


def declare(monkeypatch: pytest.MonkeyPatch, *values: str) -> None:
    installed.cache_clear()
    declared = [EntryPoint("docker", value, RUNTIMES) for value in values]
    monkeypatch.setattr(module, "entry_points", lambda group: declared)


@pytest.fixture(autouse=True)
def forget() -> object:
    yield
    installed.cache_clear()


def test_name_of_another_package_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    declare(monkeypatch, "paceline.a:Docker", "other.b:Docker")
    with pytest.raises(InvalidInputError, match=r"paceline.runtimes of .*: got 'docker', expected one package, not"):
        installed(RUNTIMES)


def test_package_that_is_found_twice_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    declare(monkeypatch, "paceline.a:Docker", "paceline.a:Docker")
    assert list(installed(RUNTIMES)) == ["docker"]
