"""Paceline's runtimes keep the contract: containers of a real engine, and local processes under both mechanisms."""

from __future__ import annotations

from paceline.testing.runtime_contract import RuntimeContract


class TestRuntimes(RuntimeContract):
    """With the fixture ``harness`` of ``conftest``."""
