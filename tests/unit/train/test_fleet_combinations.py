"""However workers join, hang, end and return, the server with them, and their deadlines move, each sample counts once.

A worker with other data is rejected. All processes are real; they run ``counted.py``.
"""

import json
import os
import signal

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paceline.train.job import ENV_CONTROL
from paceline.train.parameter_server.shards import MAX_FAILURES

from .machines import EmulatedTraining

NAMES = "abc"
ROWS = 40  # more than all workers together lease and train in the steps of a case
# A batch of a worker that hangs goes to another worker after this time. Held workers hang, too.
STUCK = ("--stuck-s", "0.5")
EXAMPLES = 50 if os.environ.get("PACELINE_EXAMPLES") == "new" else 8

SERVER_ENDS = ("kill server", "stop server")
steps = st.tuples(
    st.sampled_from(NAMES),
    st.integers(1, 3),
    st.sampled_from(["go on", "move deadline", *(f"{verb} worker" for verb in ("hang", "kill", "stop")), *SERVER_ENDS]),
)
cases = st.fixed_dictionaries(
    {
        "rows": st.fixed_dictionaries({name: st.sampled_from([0, 0, 0, -1, 7]).map(ROWS.__add__) for name in NAMES}),
        "epochs": st.integers(2, 3),
        "steps": st.lists(steps, min_size=1, max_size=4),
    }
)


class Fleet:
    """A training job, one of whose workers trains at a time."""

    def __init__(self, fork, folder, case):
        self.rows, self.case, self.folder = case["rows"], case, folder
        self.training = EmulatedTraining(fork, folder, NAMES, epochs=case["epochs"], options=STUCK)
        self.workers, self.killed = {}, dict.fromkeys(NAMES, 0)
        self.right_rows = None  # of the first worker

    def start(self, name):
        """Start a worker that is held before its first batch, and check that it is rejected if it has to be."""
        options = {"counters": max(self.rows.values())}
        variables = {ENV_CONTROL: str(self.folder / f"{name}.json")}
        self.allocate(name, 1)
        worker = self.training.start_worker(name, options, samples=self.rows[name], hold=0, **variables)
        self.right_rows = self.right_rows or self.rows[name]
        if self.rows[name] != self.right_rows:
            assert worker.wait_for_end() == 7, worker.all_logs
            assert f"samples: got {self.rows[name]}, expected {self.right_rows} as in " in worker.log
        else:
            self.workers[name] = worker
            worker.held_after()

    def allocate(self, name, tenths):
        """Set the allocation of a worker, as its runtime does when its deadline has moved."""
        (self.folder / f"{name}.json").write_text(json.dumps({"devices": tenths / 10}))

    def take(self, name, batches, event):
        """Let a worker train some batches; then end it or the server."""
        if name not in self.workers:
            self.start(name)
        if name not in self.workers:
            return
        worker, server = self.workers[name], self.training.server
        after = worker.held_after() + batches
        worker.hold(after)
        worker.wait_until_held(after)
        verb, _, target = event.partition(" ")
        if verb == "hang":
            worker.process.send_signal(signal.SIGSTOP)
            server.wait_until(lambda machine: machine.log.count(f"{name} has not returned a batch") > 0)
            worker.process.send_signal(signal.SIGCONT)
            return
        if verb == "move":
            self.allocate(name, 7 * batches)
        elif target == "server":
            server.kill() if verb == "kill" else server.process.terminate()
            server.wait_for_end()
            self.training.start_server(*STUCK)
        elif target == "worker":
            del self.workers[name]
            # After a third failure, no worker with the right data may be left.
            if verb == "kill" and self.killed[name] < MAX_FAILURES - 1:
                worker.kill()
                server.wait_until_logged(f"{name} is lost")
                self.killed[name] += 1
            else:
                worker.process.terminate()
                worker.resume()
                assert worker.wait_for_end() == 143, worker.all_logs

    def finish_and_check(self):
        """Let all workers train to the end, and check how often each sample was trained on."""
        for name in NAMES:
            if name not in self.workers:
                self.start(name)
        self.training.finish_all(self.workers.values())
        counts = [self.case["epochs"]] * self.right_rows + [0] * (max(self.rows.values()) - self.right_rows)
        for worker in self.workers.values():
            assert worker.model["counts"].tolist() == counts, worker.all_logs


@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cases)
def test_each_sample_counts_once_in_every_epoch_or_the_worker_is_rejected(tmp_path_factory, fork, case):
    fleet = Fleet(fork, tmp_path_factory.mktemp("fleet"), case)
    try:
        for step in case["steps"]:
            fleet.take(*step)
        fleet.finish_and_check()
    finally:
        fleet.training.kill_all()
