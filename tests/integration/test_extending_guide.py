"""The runtime in docs/extending.md, as its readers copy it, keeps the contract of all runtimes."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import ClassVar

import pytest
from tests.integration.jobs import ProcessHarness

from paceline.operators import DeadlineTrainingOperator
from paceline.testing.runtime_contract import MAX_OUTPUT_BYTES, RuntimeContract, fail_on_leftovers

NAME = "paceline_nice"
GUIDE = Path(__file__).parents[2] / "docs" / "extending.md"


@pytest.fixture(scope="module")
def guide(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """The module of the guide, in a folder on the path."""
    (code,) = re.findall(r"```python\n# paceline_nice\.py\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    folder = tmp_path_factory.mktemp("package")
    (folder / f"{NAME}.py").write_text(code)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield import_module(NAME)
    sys.modules.pop(NAME)


class NiceHarness(ProcessHarness):
    """Jobs of the guide's runtime are those of a process runtime, with ``nice`` before their command."""

    rejected: ClassVar = {}

    def __init__(self, guide: ModuleType, root: Path, folder: Path) -> None:
        super().__init__(root, "signal", folder)
        self.runtime = guide.NiceRuntime(10, root, mechanism="signal", max_output_bytes=MAX_OUTPUT_BYTES)
        self.constructor = (
            f"import sys\nsys.path.insert(0, {str(Path(guide.__file__ or '').parent)!r})\n"
            f"from {NAME} import NiceRuntime\nruntime = NiceRuntime(10, {root!r}, mechanism='signal')"
        )


class TestGuide(RuntimeContract):
    @pytest.fixture
    def harness(self, guide: ModuleType, process_runtime_root: Path, tmp_path: Path) -> Iterator[NiceHarness]:
        with fail_on_leftovers(NiceHarness(guide, process_runtime_root, tmp_path)) as made:
            yield made


def test_settings_of_the_guide_run_a_job_with_a_lower_priority(guide: ModuleType, tmp_path: Path) -> None:
    settings = guide.Nice(increment=15)
    task = DeadlineTrainingOperator(task_id="train", script="train.py", deadline="20m", runtime=settings)
    assert task.runtime == settings
    runtime = settings.open()
    harness = NiceHarness(guide, tmp_path / "jobs", tmp_path)
    job = runtime.start(harness.spec("import os; print(os.nice(0))"))
    assert job.wait(60)
    assert job.read_lines() == ["15"]
    job.remove()
