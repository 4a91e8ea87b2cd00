"""The versions in the guide to upgrades are those that the package accepts, and those with which the tests run."""

from __future__ import annotations

import re
from importlib.metadata import requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

import paceline

PROJECT = Path(__file__).parents[2]
GUIDE = (PROJECT / "docs" / "upgrading.md").read_text()


def test_table_has_the_accepted_and_the_tested_versions() -> None:
    rows = dict(re.findall(r"^\| ([^|]+?) \| ((?:[^|]+\| )?[^|]+) \|$", GUIDE.partition("## What happens")[0], re.M))
    accepted = {name: row.split(" | ")[0] for name, row in rows.items()}
    tested = {name: row.split(" | ")[-1] for name, row in rows.items()}
    assert f"Paceline {paceline.__version__} accepts" in GUIDE
    pins = dict(re.findall(r"^([\w-]+)==([\d.]+)", (PROJECT / "constraints.txt").read_text(), re.M))
    mlflow = re.search(r"^MLFLOW := (.*)$", (PROJECT / "Makefile").read_text(), re.M)
    assert mlflow is not None
    assert (tested["Airflow"], tested["torch"], tested["MLflow server"]) == (
        pins["apache-airflow"],
        pins["torch"],
        mlflow[1],
    )
    ranges = {one.name: one.specifier for one in map(Requirement, requires("airflow-paceline") or [])}
    series = Version(accepted["Airflow"])
    assert Version(f"{series}.0") in ranges["apache-airflow"]
    assert Version(f"{series.major}.{series.minor + 1}.0") not in ranges["apache-airflow"]
    assert str(ranges["torch"]) == f">={accepted['torch'].split()[0]}"
    classifiers = re.findall(r"Python :: (3\.\d+)", (PROJECT / "pyproject.toml").read_text())
    assert accepted["Python"] == f"{classifiers[0]} to {classifiers[-1]}"
