"""A training task in processes of its own, with a new process for each try, as Airflow starts them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.pod_faults import worker

RETRIES = 8
BATCHES = 40
_RETRY_DELAY_S = 1.0
_TIMEOUT_S = 420.0  # a broken round, not a slow one
_POLL_S = 0.05

Death = tuple[str, int, float]  # a moment of a worker process, which of them, and seconds after it


class Task:
    """One task and its tries.

    Parameters
    ----------
    folder:
        Where the tries keep their plans, logs, state and result.
    namespace, image:
        Of the pods.
    hold:
        The batch before which the job waits for ``go``; 0 for none.
    deadline:
        The deadline, for example "5s"; ``None`` for none.
    server:
        Address of a proxy before the API server; ``None`` for the server itself.
    deaths:
        When the processes of the first tries are killed.
    """

    def __init__(
        self,
        folder: Path,
        namespace: str,
        image: str,
        *,
        hold: int = 0,
        deadline: str | None = None,
        server: str | None = None,
        deaths: Sequence[Death] = (),
    ) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        self._plan = {
            "namespace": namespace,
            "image": image,
            "arguments": [BATCHES, hold],
            "deadline": deadline,
            "server": server,
            "retries": RETRIES,
        }
        self._deaths = list(deaths)
        self.tries: list[subprocess.Popen[bytes]] = []
        self.state = worker.DiskState(folder / "state")
        self._ended = threading.Event()

    def start(self) -> None:
        """Start the first try, and a further one whenever one fails or is killed."""
        threading.Thread(target=self._retry, args=(self.start_try(),), daemon=True).start()

    def start_try(self) -> subprocess.Popen[bytes]:
        """Start the process of the next try."""
        number = len(self.tries) + 1
        death = self._deaths.pop(0) if self._deaths else None
        plan = self.folder / f"try-{number}.json"
        plan.write_text(json.dumps({**self._plan, "try": number, "death": death}))
        with (self.folder / f"try-{number}.log").open("wb") as log:
            command = [sys.executable, "-m", "benchmarks.pod_faults.worker", str(plan)]
            process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        self.tries.append(process)
        return process

    def _retry(self, process: subprocess.Popen[bytes]) -> None:
        """As Airflow does: a failed or killed try is followed by the next one, and an end by a success or a failure."""
        while (code := process.wait()) not in (worker.SUCCESS, worker.FAIL) and len(self.tries) <= RETRIES:
            if process is not self.tries[-1]:  # a later try runs already
                process = self.tries[-1]
                continue
            if code == worker.RETRY:
                time.sleep(_RETRY_DELAY_S)
            process = self.start_try()
        self._ended.set()

    def has_ended(self) -> bool:
        """Return whether the last try has ended."""
        return self._ended.is_set()

    def wait(self) -> None:
        """Wait for the end of the last try."""
        if not self._ended.wait(_TIMEOUT_S):
            raise TimeoutError("the task has not ended")

    def log(self, number: int | None = None) -> str:
        """Return the log of one try, or of all."""
        paths = [self.folder / f"try-{one}.log" for one in range(1, len(self.tries) + 1) if number in (None, one)]
        return "".join(path.read_text(errors="replace") for path in paths)

    def wait_for(self, pattern: str) -> None:
        """Wait until the log has a line that contains ``pattern``."""
        give_up_s = time.monotonic() + _TIMEOUT_S
        while not re.search(pattern, self.log()):
            if self.has_ended():
                raise RuntimeError(f"the task has ended without {pattern!r}")
            if time.monotonic() > give_up_s:
                raise TimeoutError(f"the log has no {pattern!r}")
            time.sleep(_POLL_S)

    def result(self) -> dict[str, Any] | None:
        """Return the model; ``None`` if the last try was no success."""
        path = self.folder / "model" / "model.json"
        if self.tries[-1].returncode != worker.SUCCESS or not path.exists():
            return None
        model: dict[str, Any] = json.loads(path.read_text())
        return model

    def processes(self) -> list[int]:
        """Return the processes that the tries have left, themselves included."""
        sessions = {process.pid for process in self.tries}
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                state, _, _, session = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[:4]
            except OSError:
                continue
            if int(session) in sessions and state != "Z":
                found.append(int(name))
        return found

    def kill(self) -> None:
        """End all processes of a round that has gone wrong."""
        for process in self.tries:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.wait()
