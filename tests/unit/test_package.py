"""The metadata and files of the package ``airflow-paceline``."""

from __future__ import annotations

import importlib
import importlib.resources
import json
import os
import re
import subprocess
import sys
import zipfile
from importlib.metadata import entry_points
from pathlib import Path

import jsonschema
import pytest

import paceline
from paceline.airflow.provider import get_provider_info

PROJECT = Path(__file__).parents[2]
# Import names of the libraries of the extra `worker`.
WORKER_LIBRARIES = ("matplotlib", "numpy", "pandas", "pyarrow", "river", "scipy", "sklearn", "tqdm")
# The import names of the folders outside include/.
MAPPED = {"operators": "paceline.operators", "plugins": "paceline.plugins", "sensors": "paceline.sensors"}


def _find_packages() -> dict[str, Path]:
    """Return a map from the import name of every Paceline package to its folder."""
    folders_by_name = {
        ".".join(init.parent.relative_to(PROJECT / "include").parts): init.parent
        for init in (PROJECT / "include").rglob("__init__.py")
    }
    for folder, name in MAPPED.items():
        for init in (PROJECT / folder).rglob("__init__.py"):
            folders_by_name[".".join([name, *init.parent.relative_to(PROJECT / folder).parts])] = init.parent
    return folders_by_name


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Build the wheel, with the pages if they are built, from a copy of the repository."""
    folder = tmp_path_factory.mktemp("wheel")
    sources = ["pyproject.toml", "README.md", "LICENSE", "include", *MAPPED]
    excluded = [f"--exclude={name}" for name in ("__pycache__", "node_modules")]
    copied = subprocess.run(["tar", "-c", *excluded, *sources], cwd=PROJECT, capture_output=True, check=True)
    (folder / "source").mkdir()
    subprocess.run(["tar", "-x", "-C", folder / "source"], input=copied.stdout, check=True)
    built = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--no-deps", "--quiet", "--wheel-dir", folder, folder / "source"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    (path,) = folder.glob("*.whl")
    return zipfile.ZipFile(path)


def test_provider_is_found_by_its_entry_point() -> None:
    """Airflow loads every entry point of this group at startup."""
    (provider,) = [e for e in entry_points(group="apache_airflow_provider") if e.value.startswith("paceline.")]

    assert provider.load() is get_provider_info


def test_provider_info_conforms_to_airflows_schema() -> None:
    """Airflow validates providers with the same schema."""
    schema = json.loads(importlib.resources.files("airflow").joinpath("provider_info.schema.json").read_text())

    jsonschema.validate(get_provider_info(), schema)


def test_provider_info_names_package_and_version() -> None:
    info = get_provider_info()

    assert info["package-name"] == "airflow-paceline"
    assert info["versions"][0] == paceline.__version__
    assert f'\nversion = "{paceline.__version__}"\n' in (PROJECT / "pyproject.toml").read_text()


@pytest.mark.parametrize("kind", ["operators", "sensors", "triggers"])
def test_modules_of_the_provider_info_can_be_imported(kind: str) -> None:
    names = [name for entry in get_provider_info()[kind] for name in entry["python-modules"]]

    assert names
    for name in names:
        importlib.import_module(name)


def test_pages_operators_sensors_and_command_need_no_extra() -> None:
    """The API server and the DAG processor import these modules, and have only the base dependencies."""
    program = f"""
import sys
from importlib import import_module

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {(*WORKER_LIBRARIES, "kubernetes", "openlineage")}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocker())
for name in ("operators", "sensors", "airflow.provider", "plugins.web.app", "plugins.paceline_plugin", "airflow.cli"):
    import_module(f"paceline.{{name}}")
plugin = sys.modules["paceline.plugins.paceline_plugin"].PacelinePlugin()
assert plugin.fastapi_apps and plugin.react_apps
sys.modules["paceline.airflow.cli"].main(["--help"])
"""
    assert "usage: paceline" in _run_python(program).stdout


def test_airflow_lists_the_provider(tmp_path: Path) -> None:
    """Airflow only logs a warning for an invalid provider and then ignores the provider."""
    program = (
        "from airflow.providers_manager import ProvidersManager\n"
        "print(ProvidersManager().providers['airflow-paceline'].version)"
    )
    done = _run_python(program, AIRFLOW_HOME=str(tmp_path))

    assert done.stdout.splitlines()[-1] == paceline.__version__, done.stderr


def test_libraries_of_the_extra_are_not_base_dependencies(wheel: zipfile.ZipFile) -> None:
    metadata = wheel.read(f"airflow_paceline-{paceline.__version__}.dist-info/METADATA").decode()
    names = {"sklearn": "scikit-learn"}
    for library in WORKER_LIBRARIES:
        requirements = re.findall(rf"^Requires-Dist: ({names.get(library, library)}\b.*)$", metadata, re.MULTILINE)
        extras = {one.partition("; ")[2] for one in requirements}
        assert 'extra == "worker"' in extras, library
        assert "" not in extras, library


def test_links_and_pictures_of_the_readme_work_on_the_package_index() -> None:
    """The package index shows the README without the other files, so links to these are URLs."""
    text = (PROJECT / "README.md").read_text()
    targets = re.findall(r"\]\(([^)]+)\)", text) + re.findall(r'(?:href|src|srcset)="([^"]+)"', text)
    assert [target for target in targets if not target.startswith("https://")] == []
    hosts = (
        r"https://(?:github\.com/paceline/airflow-paceline/blob|raw\.githubusercontent\.com/paceline/airflow-paceline)"
    )
    files = [match[1] for match in (re.match(rf"{hosts}/main/([^#]+)", target) for target in targets) if match]
    assert len(files) > 10
    assert [file for file in files if not (PROJECT / file).exists()] == []


def test_wheel_contains_every_package(wheel: zipfile.ZipFile) -> None:
    """pyproject.toml lists every package by name, so a new package is easily forgotten."""
    missing = {
        name: path
        for name, path in _find_packages().items()
        for module in path.glob("*.py")
        if f"{name.replace('.', '/')}/{module.name}" not in wheel.namelist()
    }

    assert not missing, "add these to [tool.setuptools] packages in pyproject.toml"


def test_pages_are_rebuilt_after_a_change_of_their_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(PROJECT / "plugins" / "ui"))
    backend = importlib.import_module("wheel_backend")
    script, source = tmp_path / "pages.js", tmp_path / "src" / "main.tsx"
    source.parent.mkdir()
    source.write_text("")
    monkeypatch.setattr(backend, "SCRIPT", script)
    monkeypatch.setattr(backend, "SOURCES", [source.parent])
    assert not backend.is_up_to_date(), "the pages are not built"
    script.write_text("")
    for source_s, expected in ((1000.0, True), (3000.0, False)):
        os.utime(source, (source_s, source_s))
        os.utime(source.parent, (1000.0, 1000.0))
        os.utime(script, (2000.0, 2000.0))
        assert backend.is_up_to_date() is expected


@pytest.mark.parametrize(
    ("npm", "reason"),
    [(None, "No such file or directory: 'npm'"), ("#!/bin/sh\nexit 217\n", "returned non-zero exit status 217")],
)
def test_build_without_a_working_npm_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, npm: str | None, reason: str
) -> None:
    monkeypatch.syspath_prepend(str(PROJECT / "plugins" / "ui"))
    backend = importlib.import_module("wheel_backend")
    if npm is not None:
        (tmp_path / "npm").write_text(npm)
        (tmp_path / "npm").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(SystemExit) as failure:
        backend.build_pages()
    assert reason in str(failure.value)
    assert "Build the wheel with `make wheel`" in str(failure.value)


def test_wheel_is_built_without_the_development_environment() -> None:
    command = ["make", "--dry-run", "--always-make", "wheel"]
    steps = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True).stdout
    assert "pip --disable-pip-version-check wheel --no-deps" in steps
    assert ".venv" not in steps


def test_wheel_contains_the_built_pages(wheel: zipfile.ZipFile) -> None:
    script = wheel.read("paceline/plugins/static/pages.js").decode()
    assert "globalThis.AirflowPlugin" in script or ".AirflowPlugin=" in script
    assert "paceline/plugins/static/pace.svg" in wheel.namelist()
    assert not [name for name in wheel.namelist() if "node_modules" in name or name.endswith(".tsx")]


def test_wheel_contains_the_templates_of_the_drift_report(wheel: zipfile.ZipFile) -> None:
    names = {path.name for path in (PROJECT / "include" / "paceline" / "drift" / "page").iterdir()}
    assert "page.html.jinja" in names
    assert {f"paceline/drift/page/{name}" for name in names} <= set(wheel.namelist())


def test_wheel_is_marked_as_typed(wheel: zipfile.ZipFile) -> None:
    assert "paceline/py.typed" in wheel.namelist()


def test_wheel_installs_a_single_top_level_package(wheel: zipfile.ZipFile) -> None:
    """Top-level folders named ``operators`` or ``plugins`` in site-packages would collide with other packages."""
    roots = {name.split("/")[0] for name in wheel.namelist()}

    assert roots == {"paceline", f"airflow_paceline-{paceline.__version__}.dist-info"}


def test_wheel_contains_the_licence(wheel: zipfile.ZipFile) -> None:
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in wheel.namelist())


def _run_python(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done
