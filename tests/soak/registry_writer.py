"""A process that writes to a registry: ``python -m tests.soak.registry_writer ROOT OPTIONS NAME COUNT LOG``.

The process registers, promotes and fetches in turn, and appends a line to LOG after each operation. A restarted writer
continues after the last line of LOG, so it may repeat one operation.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from upath import UPath

from paceline.registry import FileRegistry, MlflowRegistry, Registry

MODEL = "flights"


def main(root: str, options: str, name: str, count: str, log: str) -> None:
    registry = open_registry(root, json.loads(options))
    lines = Path(log).read_text().splitlines() if Path(log).exists() else []
    registered = [json.loads(line)["registered"] for line in lines if "registered" in line]
    with Path(log).open("a") as file:
        for number in range(len(lines), int(count)):
            record = operate(registry, f"{name}-{number}", number, registered)
            file.write(json.dumps(record) + "\n")
            file.flush()


def open_registry(root: str, options: dict[str, Any]) -> Registry:
    """Open the registry at a path or URL, or on the MLflow server at an HTTP URL."""
    return MlflowRegistry(root) if root.startswith("http://") else FileRegistry(UPath(root, **options))


def operate(registry: Registry, key: str, number: int, registered: list[int]) -> dict[str, int]:
    """Perform one operation, and return its kind and the version."""
    if number % 3 == 0:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "weights.bin").write_text(key)
            registered.append(registry.register(folder, name=MODEL, key=key).version)
        return {"registered": registered[-1]}
    if number % 3 == 1:
        return {"promoted": registry.promote(MODEL, registered[-1], reason=key).version}
    champion = registry.champion(MODEL)
    assert champion is not None
    with tempfile.TemporaryDirectory() as folder:
        registry.fetch(champion, Path(folder))
        assert (Path(folder) / "weights.bin").read_text() == champion.key
    return {"fetched": champion.version}


if __name__ == "__main__":
    main(*sys.argv[1:])
