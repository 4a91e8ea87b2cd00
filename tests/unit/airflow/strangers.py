"""A package of a stranger with a runtime."""

from __future__ import annotations

from pathlib import Path

from paceline.installed import RUNTIMES, installed

MODULE = "hall_of_a_stranger"
HALL = """
from dataclasses import dataclass
from pathlib import Path
from paceline.airflow.runtimes import RuntimeSettings
from paceline.airflow.values import text
from paceline.runtime import ProcessRuntime


class HallRuntime(ProcessRuntime):
    name = "hall"


@dataclass(frozen=True, kw_only=True)
class Hall(RuntimeSettings):
    name = "hall"
    template_fields = ("room",)
    readers = {"room": text}
    room: str = "large"

    def open(self):
        return HallRuntime(Path(__file__).parent / self.room)
"""


def install(folder: Path, package: str, entry_point: str, group: str = RUNTIMES) -> None:
    """Install a package in a folder on the path, with an entry point in a group."""
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{entry_point}\n")
    installed.cache_clear()
