"""Which test process takes which file next."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

_AIRFLOWS = 2  # an idle Airflow takes an eighth of a core


class AirflowFirst(LoadFileScheduling):
    """Two processes take the files that need an Airflow, and then what is left; the others take those that need none.

    So further processes compute while the first two wait, and bring no Airflow of their own.
    """

    def _assign_work_unit(self, node: WorkerController) -> None:
        has_airflow = int(node.gateway.id.removeprefix("gw")) < _AIRFLOWS
        suits = (file for file in self.workqueue if needs_airflow(self.config.rootpath / file) == has_airflow)
        self.workqueue.move_to_end(next(suits, next(iter(self.workqueue))), last=False)
        super()._assign_work_unit(node)


@cache
def needs_airflow(file: Path) -> bool:
    """Say whether tests of a file are marked so."""
    return "pytest.mark.airflow" in file.read_text()
