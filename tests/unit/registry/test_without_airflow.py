"""A service reads the registry with the packages that the guide names, and without Airflow."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

from paceline.registry import FileRegistry

GUIDE = Path(__file__).parents[3] / "docs" / "registry.md"
COMMANDS = re.compile(r"^\$ pip install (.*)\n\$ pip install --no-deps airflow-paceline$", re.MULTILINE)
SERVICE = """
import sys
from pathlib import Path

sys.modules |= dict.fromkeys(sys.argv[3:])  # their import fails
from paceline.registry import FileRegistry, MlflowRegistry

registry = FileRegistry(sys.argv[1])
registry.fetch(registry.champion("flights"), Path(sys.argv[2]))
MlflowRegistry("http://127.0.0.1:9")
"""


def normal(name: str) -> str:
    """Return the normalised name of a package."""
    return re.sub(r"[-_.]+", "-", name).lower()


def with_dependencies(names: set[str]) -> set[str]:
    """Return packages with all packages that they require."""
    found: set[str] = set()
    new = names
    while new:
        found |= new
        needed = set()
        for name in new:
            try:
                lines = requires(name) or []
            except PackageNotFoundError:  # of another platform
                continue
            needed |= {normal(re.split(r"[^\w.-]", line)[0]) for line in lines if "extra ==" not in line}
        new = needed - found
    return found


def test_service_needs_the_packages_of_the_guide_only(tmp_path: Path) -> None:
    (command,) = COMMANDS.findall(GUIDE.read_text())
    needed = {*with_dependencies(set(command.split())), "airflow-paceline"}
    packages = packages_distributions().items()
    others = [module for module, names in packages if not needed & {normal(name) for name in names}]
    assert {"airflow", "docker", "pandas", "yaml"} <= set(others)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.pt").write_text("weights")
    registry = FileRegistry(tmp_path / "models")
    registry.register(tmp_path / "model", name="flights")
    registry.promote("flights", 1, "first")
    service = [sys.executable, "-c", SERVICE, str(tmp_path / "models"), str(tmp_path / "service"), *others]
    ran = subprocess.run(service, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "service" / "model.pt").read_text() == "weights"
