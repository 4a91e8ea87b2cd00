"""The contract of a runtime whose jobs form teams: their network, and how they are found and removed."""

from __future__ import annotations

import dataclasses
import signal
from typing import Any

import pytest

from paceline.errors import JobLostError
from paceline.runtime import JobSpec, SupportsTeams, TeamNetwork

from .harness import GATE, WAITS, RuntimeHarness, read_to_end, wait_for_line

_TEAM = "paceline.test_team"
_LISTENS = """
import socket
server = socket.create_server(("", 5000))
print("listens", flush=True)
server.accept()[0].sendall(b"from the server")
"""
_CONNECTS = """
import socket
print(socket.create_connection(("server", 5000), timeout=60).makefile().read())
"""

_TICKS = """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
print("at the gate", flush=True)
while not signal.sigtimedwait([signal.SIGUSR1], 0.05): print("tick", flush=True)
print("later")
"""


class TeamHarness(RuntimeHarness):
    """A harness of a runtime whose jobs form teams."""

    runtime: SupportsTeams


class TeamContract:
    """Tests of the protocol :class:`paceline.runtime.SupportsTeams`, in addition to those of ``RuntimeContract``.

    A subclass has a fixture ``harness`` that returns a :class:`TeamHarness`, a new one for each test.
    """

    def test_jobs_of_a_team_share_a_network_until_the_last_is_removed(self, harness: TeamHarness) -> None:
        runtime, network = harness.runtime, f"{harness.mark}-net"
        assert not runtime.has_network(network)
        server = runtime.start(_spec(harness, "server", _LISTENS, team_network=TeamNetwork(network, "server")))
        wait_for_line(server, "listens")
        worker = runtime.start(_spec(harness, "worker", _CONNECTS, team_network=TeamNetwork(network)))
        assert read_to_end(worker) == ["from the server"]
        server.remove()
        assert runtime.has_network(network)
        worker.remove()
        assert not runtime.has_network(network)

    def test_all_jobs_with_a_label_are_found_and_removed(self, harness: TeamHarness) -> None:
        runtime, team, network = harness.runtime, {_TEAM: harness.mark}, f"{harness.mark}-net"
        ended = runtime.start(_spec(harness, "ended", team_network=TeamNetwork(network, "ended")))
        read_to_end(ended)
        running = runtime.start(_spec(harness, "running", WAITS, team_network=TeamNetwork(network)))
        running.resize(0.5)
        other = runtime.start(harness.spec(WAITS, name=f"{harness.mark}-other"))
        found = {job.id: (labels, devices) for job, labels, devices in runtime.find_all(team)}
        assert set(found) == {ended.id, running.id}
        assert found[running.id][1] == pytest.approx(0.5)
        assert all(team.items() <= labels.items() for labels, _ in found.values())
        assert team.items() <= runtime.labels_of(running.id).items()
        assert team.items().isdisjoint(runtime.labels_of(other.id).items())
        runtime.remove_all(team)
        assert list(runtime.find_all(team)) == []
        assert not runtime.has_network(network)
        with pytest.raises(JobLostError):
            runtime.labels_of(running.id)
        assert other.status().state == "running"
        other.remove()

    def test_running_program_is_found_with_its_new_output(self, harness: TeamHarness) -> None:
        spec, team = _spec(harness, "app", _TICKS), {_TEAM: harness.mark}
        job = harness.runtime.start(spec)
        wait_for_line(job, "at the gate")
        found = harness.runtime.find(team, spec.options)
        assert found is not None
        assert found.id == job.id
        lines = wait_for_line(found, "tick")
        harness.signal(job, signal.SIGUSR1)
        lines += read_to_end(found)
        assert set(lines[:-1]) == {"tick"}
        assert lines[-1] == "later"
        assert harness.runtime.find(team, spec.options) is None
        job.remove()

    def test_paused_job_continues(self, harness: TeamHarness) -> None:
        job = harness.runtime.start(_spec(harness, "paused", GATE + "gate()\nprint('later')"))
        wait_for_line(job, "at the gate")
        job.pause()
        assert job.status().state == "running"
        job.unpause()
        harness.signal(job, signal.SIGUSR1)
        assert read_to_end(job) == ["later"]
        job.remove()


def _spec(harness: TeamHarness, name: str, code: str = "", **changes: Any) -> JobSpec:
    """Return the specification of a job with the label ``_TEAM`` and a file of its own."""
    spec = harness.spec(code, name=f"{harness.mark}-{name}", devices=0.3, **changes)
    return dataclasses.replace(spec, labels={**spec.labels, _TEAM: harness.mark})
