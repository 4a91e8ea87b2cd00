"""Rules for the code's structure: layers of packages, no import cycles, unique class names, and exports."""

from __future__ import annotations

import ast
import importlib
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
ROOTS = {"paceline": PROJECT / "include" / "paceline"} | {
    f"paceline.{name}": PROJECT / name for name in ("operators", "sensors", "plugins")
}
# A package imports only from packages in later rows, or in the same row if there is no import cycle.
LAYERS = (
    ("operators", "sensors", "plugins"),
    ("airflow",),
    ("simulate", "testing"),
    ("arbiter", "profiles", "run"),
    ("elastic", "fleet"),
    ("allocate", "contract", "control", "drift", "registry", "runtime", "schedule"),
    ("train",),
    ("extras", "installed"),
    ("errors",),
)
# Airflow, ``python -m``, training code or tests of other packages import these modules by name.
ENTRY_POINTS = {"paceline.airflow.provider", "paceline.airflow.mlflow_hook", "paceline.runtime.launcher"}
ENTRY_POINTS |= {"paceline.train.parameter_server.state_shard", "paceline.train.parallel.pod"}
ENTRY_POINTS |= {"paceline.testing.policy_contract"}
ENTRY_POINTS |= {
    f"paceline.train.adapters.{name}"
    for name in ("catboost", "huggingface", "keras", "lightgbm", "lightning", "sklearn", "xgboost")
}
EXPORTS = {
    "paceline.airflow.runtimes": (
        "Docker Kubernetes Process RuntimeSettings installed_runtimes named_settings runtime_value stored_settings"
    ),
    "paceline.airflow.windows": (
        "CHAMPION DataWindow Parameters Snapshot cached_window check_file_name describe identify_file is_sql "
        "read_window"
    ),
    "paceline.allocate": (
        "DEVICE Allocation ClusterJob ElasticFlow Greedy Growing ImpossibleAllocationError LeastCost Node OnTime "
        "Placement Policy RandomizedGreedy Reservation RollingHorizon Speeds check edf fifo free_devices make_policy "
        "most_on_time on_time_promises priority"
    ),
    "paceline.arbiter": "Arbiter DeviceRequest Grant allowed_counts",
    "paceline.contract": (
        "ALERTS CEILING CLOCK CONTAINER CONTROLLER DEADLINE DRIFT_XCOM EVALUATION_XCOM HISTORY HISTORY_BEFORE "
        "LABEL_RUN_START MAX_STARTS NEEDS_TRAINING NOT_STARTED OUTPUT PACE PROMOTION_XCOM QUANTILES RESULT RUN_KEYS "
        "RUN_START SCHEDULE_XCOM STEERING_XCOM TASK_STATES XCOM_LIMIT_BYTES AlertKind ArbiterResult ArbiterStatus "
        "Ceiling Change CollectedOutput Comparison ConceptDrift Confusion ControllerState Deadline DriftEvent "
        "DriftReport DriftSummary DriftVerdict EstimatedPeriod EvaluationResult FeatureDrift FeatureStatistics "
        "FleetResult FunctionFit Histogram Improvements JobRecord JointDrift MachineLoad Outcome PaceSample "
        "PerformanceEstimate PlannedStart ProblemKind ProfileResult PromotionResult PromotionVerdict QualityProblem "
        "Reason ReasonKind Record Remaining Reported RunEvent RunTotals ScheduleResult SegmentDrift SentAlerts Shard "
        "ShownEvaluation StartFailure State StoredClock StoredDeadline StoredFiles StoredHistory StoredResult "
        "TrainingResult Unit WindowSource WorkerResult finite fit_to_xcom hash_secret input_error storable_deadline "
        "unit_of"
    ),
    "paceline.control": (
        "BudgetController CONTROLLERS CPU_QUANTUM Controller DeadlineController Decision GPU_QUANTUM Gains LATE_WEIGHT "
        "Limits Observation PAPER_GAINS PIController PaperController PastRun PastTail Ramp RemainingWork SpeedModel "
        "TailForecast TailModel make_controller target_end_s"
    ),
    "paceline.drift": (
        "NEEDS_TRAINING Change ConceptDrift Confusion DriftReport DriftSettings EstimatedPeriod FeatureDrift "
        "FeatureSettings Histogram JointDrift PerformanceEstimate QualityProblem QualitySettings SegmentDrift compare "
        "to_html"
    ),
    "paceline.elastic": "Decider Team Scaling Step TeamConfiguration TeamSample",
    "paceline.fleet": "BackgroundApp EngineCheck Fleet Link Machine check check_nodes load",
    "paceline.operators": (
        "ApproveOperator ArbiterOperator DeadlineTrainingOperator Docker EvaluateOperator FleetResultOperator "
        "Kubernetes LogNotifier ParameterServerOperator Process ProfileOperator PromoteOperator ScheduleOperator "
        "WorkerTrainingOperator train_on_fleet"
    ),
    "paceline.profiles": (
        "Axes DeviceProfile FUNCTIONS Function Learned NoProfileError Origin ProfileEstimates choose_more execution "
        "first_points learn"
    ),
    "paceline.registry": (
        "ChampionChangedError ChampionHeldError FileRecord FileRegistry MlflowRegistry ModelChangedError ModelVersion "
        "Promotion ReferenceFile Registry VersionNeededError VersionSummary"
    ),
    "paceline.run": (
        "ControlElsewhereError Exchange Handover History JsonText LiveState LiveValues MemoryState PaceLoop "
        "RemoteState Surroundings Training WaitElsewhereError WaitingJob"
    ),
    "paceline.runtime": (
        "DockerOptions DockerRuntime Job JobFolder JobSpec JobStatus KubernetesOptions PausableJob ProcessRuntime "
        "Runtime ScatteredJob SupportsTeams TeamNetwork Usage"
    ),
    "paceline.schedule": (
        "Assignment Candidate Estimates NoFeasibleWorkerError Plan Problem State deep_edge fair schedule"
    ),
    "paceline.sensors": "DriftEventTrigger DriftSensor DriftSettings DriftTrigger FeatureSettings QualitySettings",
    "paceline.train": (
        "Converged Kept KeptVariables Loop checkpoint data_parallel device expect_trainings input_dir output_dir "
        "report resampled stop_early track track_epochs"
    ),
}


@cache
def modules() -> dict[str, Path]:
    """Return a map from the import name of every Paceline module to its file."""
    files = {}
    for name, root in ROOTS.items():
        for path in root.rglob("*.py"):
            if "node_modules" in path.parts:
                continue
            parts = path.relative_to(root).with_suffix("").parts
            files[".".join((name, *(parts[:-1] if parts[-1] == "__init__" else parts)))] = path
    return files


def imported_modules(name: str) -> Iterator[str]:
    """Yield the Paceline modules that a module imports, including imports in functions and for type checkers."""
    path = modules()[name]
    return imported_by(path, name if path.name == "__init__.py" else name.rpartition(".")[0])


def imported_by(path: Path, package: str) -> Iterator[str]:
    """Yield the Paceline modules that the file, which belongs to ``package``, imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules())
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package.split(".")[: len(package.split(".")) - node.level + 1]) if node.level else ""
            source = ".".join(filter(None, (base, node.module)))
            for alias in node.names:
                inner = f"{source}.{alias.name}"
                if inner in modules() or source in modules():
                    yield inner if inner in modules() else source


def package_of(name: str) -> str:
    """Return the package in ``LAYERS`` to which a module belongs."""
    return ([*name.split("."), ""])[1]


def test_packages_import_only_from_lower_layers() -> None:
    rank = {package: number for number, row in enumerate(LAYERS) for package in row}
    wrong = [
        f"{name} imports {other}"
        for name in modules()
        for other in imported_modules(name)
        if package_of(name) and package_of(other) and rank[package_of(name)] > rank[package_of(other)]
    ]
    assert wrong == []


def test_private_modules_have_a_leading_underscore() -> None:
    """A module whose name begins with an underscore is imported only in its package, any other module also elsewhere.

    Unit tests may import the private modules of a package.
    """
    importers = [
        (path, name if path.name == "__init__.py" else name.rpartition(".")[0]) for name, path in modules().items()
    ]
    importers += [
        (path, "tests") for root in ("tests", "benchmarks", "demo") for path in (PROJECT / root).rglob("*.py")
    ]
    elsewhere = {
        one
        for path, package in importers
        if PROJECT / "tests" / "unit" not in path.parents
        for one in imported_by(path, package)
        if not f"{package}.".startswith(f"{one.rpartition('.')[0]}.")
    }
    # Modules of the top level, such as the errors, belong to all packages.
    plain = {name for name, path in modules().items() if not path.name.startswith("_") and name.count(".") > 1}
    assert {one for one in elsewhere if one.rpartition(".")[2].startswith("_")} == set()
    assert {one for one in plain - elsewhere - ENTRY_POINTS if ROOTS["paceline"] in modules()[one].parents} == set()


def test_no_module_imports_itself_through_other_modules() -> None:
    faces = {name for name, path in modules().items() if path.name == "__init__.py"}  # packages only re-export names
    graph = {name: set(imported_modules(name)) - faces - {name} for name in modules() if name not in faces}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_no_package_imports_itself_through_other_packages() -> None:
    graph = defaultdict(set)
    for name in modules():
        others = {package_of(other) for other in imported_modules(name)}
        graph[package_of(name)] |= others - {package_of(name), ""}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_class_names_are_unique() -> None:
    places = defaultdict(list)
    for name, path in modules().items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(name)
    del places["PacelineCallback"]  # each adapter has a class of this name
    assert {name: files for name, files in places.items() if len(files) > 1} == {}


@pytest.mark.parametrize("package", EXPORTS)
def test_exports_of_each_package_are_as_listed(package: str) -> None:
    assert sorted(importlib.import_module(package).__all__) == sorted(EXPORTS[package].split())


def test_walkthroughs_name_files_that_exist_and_are_short() -> None:
    walks = (PROJECT / "docs" / "architecture.md").read_text().partition("## Three walkthroughs")[2].split("\n### ")[1:]
    files = [re.findall(r"^\| `(.+?\.py)` \|", walk, re.MULTILINE) for walk in walks]
    assert [name for names in files for name in names if not path_of(name).exists()] == []
    assert [len(names) for names in files] == [8, 10, 8]  # a longer walk means one more file to know


def path_of(name: str) -> Path:
    """Return the path of a file as the guides name it."""
    return PROJECT / ("include" if name.startswith("paceline/") else "") / name


def test_exported_names_are_imported_from_their_package() -> None:
    """Other packages import an exported name only from the package that exports it."""
    wrong = []
    for name, path in modules().items():
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ImportFrom) or node.level or not (node.module or "").startswith("paceline."):
                continue
            package = f"paceline.{package_of(node.module or '')}"
            if node.module == package or package_of(name) == package_of(package) or package not in EXPORTS:
                continue
            exported = {alias.name for alias in node.names} & set(EXPORTS[package].split())
            wrong += [f"{name}: import {one} from {package}, not from {node.module}" for one in sorted(exported)]
    assert wrong == []
