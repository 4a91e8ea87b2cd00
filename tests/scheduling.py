"""Assignment of test files to test processes."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

_AIRFLOWS = 2  # an idle Airflow uses an eighth of a core


class AirflowFirst(LoadFileScheduling):
    """A scheduler that assigns the test files that need an Airflow to the first two test processes.

    The other test processes run the other files, which need CPU time while the first two processes wait for Airflow.
    """

    def _assign_work_unit(self, node: WorkerController) -> None:
        has_airflow = int(node.gateway.id.removeprefix("gw")) < _AIRFLOWS
        suitable = (file for file in self.workqueue if needs_airflow(self.config.rootpath / file) == has_airflow)
        self.workqueue.move_to_end(next(suitable, next(iter(self.workqueue))), last=False)
        super()._assign_work_unit(node)


@cache
def needs_airflow(file: Path) -> bool:
    """Return whether a file has tests that are marked ``airflow``."""
    return "pytest.mark.airflow" in file.read_text()
