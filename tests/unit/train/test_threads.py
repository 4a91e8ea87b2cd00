import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from paceline.train import Loop, track
from paceline.train._share import CpuShare
from paceline.train._threads import Threads, threads_for

V2_MOUNT = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"
V1_MOUNT = "32 31 0:29 {root} /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct"


class Machine:
    """A file system that shows the control groups of one process, as the kernel writes them."""

    def __init__(self, root):
        self.root = root

    def proc(self, cgroup, mountinfo):
        for name, text in (("cgroup", cgroup), ("mountinfo", mountinfo)):
            path = self.root / "proc/self" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + "\n")

    def quota(self, group, value):
        """Version 2: "quota period"; version 1: a number of microseconds for a period of 100 ms."""
        folder = self.root / "sys/fs/cgroup" / group
        folder.mkdir(parents=True, exist_ok=True)
        if isinstance(value, str):
            (folder / "cpu.max").write_text(value + "\n")
        else:
            (folder / "cpu.cfs_quota_us").write_text(f"{value}\n")
            (folder / "cpu.cfs_period_us").write_text("100000\n")

    def share(self):
        return CpuShare({}, self.root).read()


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def test_version_2_in_a_container(machine):
    machine.proc("0::/", V2_MOUNT)
    machine.quota("", "150000 100000")
    assert machine.share() == 1.5


def test_version_2_without_a_limit(machine):
    machine.proc("0::/", V2_MOUNT)
    machine.quota("", "max 100000")
    assert machine.share() is None


def test_version_2_the_tightest_of_nested_groups_counts(machine):
    machine.proc("0::/user.slice/app.slice/job.scope", V2_MOUNT)
    machine.quota("user.slice", "300000 100000")
    machine.quota("user.slice/app.slice", "50000 100000")
    machine.quota("user.slice/app.slice/job.scope", "max 100000")
    assert machine.share() == 0.5


def test_version_1_in_a_container_that_sees_the_path_of_the_host(machine):
    machine.proc("4:cpu,cpuacct:/docker/abc", V1_MOUNT.format(root="/docker/abc"))
    machine.quota("cpu,cpuacct", 60_000)
    assert machine.share() == 0.6


def test_version_1_in_a_group_below_the_container(machine):
    machine.proc("4:cpu,cpuacct:/docker/abc/job", V1_MOUNT.format(root="/docker/abc"))
    machine.quota("cpu,cpuacct", -1)
    machine.quota("cpu,cpuacct/job", 25_000)
    assert machine.share() == 0.25


def test_version_1_in_a_namespace_whose_mount_lies_elsewhere(machine):
    machine.proc("4:cpu,cpuacct:/", V1_MOUNT.format(root="/../.."))
    machine.quota("cpu,cpuacct", 60_000)
    assert machine.share() == 0.6


def test_version_1_without_a_limit(machine):
    machine.proc("4:cpu,cpuacct:/", V1_MOUNT.format(root="/"))
    machine.quota("cpu,cpuacct", -1)
    assert machine.share() is None


def test_both_versions_mounted_the_one_with_the_cpu_controller_counts(machine):
    unified = "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw"
    machine.proc("3:cpuset:/\n4:cpu,cpuacct:/\n0::/", V1_MOUNT.format(root="/") + "\n" + unified)
    machine.quota("cpu,cpuacct", 120_000)
    (machine.root / "sys/fs/cgroup/unified").mkdir()
    assert machine.share() == 1.2


def test_a_mount_point_with_a_space(machine):
    machine.proc("0::/", V2_MOUNT.replace("/sys/fs/cgroup", r"/sys/fs/cgroup\040two"))
    machine.quota("../cgroup two", "50000 100000")
    assert machine.share() == 0.5


@pytest.mark.parametrize("content", ["", "nonsense", "0 100000", "100000 0", "-5 100000"])
def test_a_quota_that_makes_no_sense_is_no_limit(machine, content):
    machine.proc("0::/", V2_MOUNT)
    machine.quota("", content)
    assert machine.share() is None


def test_a_machine_without_control_groups_has_no_limit(machine):
    assert machine.share() is None


@pytest.mark.parametrize(
    ("content", "share"),
    [
        ('{"devices": 0.35}', 0.35),
        ('{"devices": 2, "more": 1}', 2.0),
        ('{"devices": "x"}', None),
        ('{"devices": -1}', None),
        ('{"devices": NaN}', None),
        ("[]", None),
        ('{"dev', None),
    ],
)
def test_the_control_file_of_the_runtime_comes_first(machine, tmp_path, content, share):
    machine.proc("0::/", V2_MOUNT)
    machine.quota("", "150000 100000")
    control = tmp_path / "control.json"
    control.write_text(content)
    assert CpuShare({"PACELINE_CONTROL": str(control)}, tmp_path).read() == share


@pytest.mark.skipif(
    not os.access("/sys/fs/cgroup/cpu/cgroup.procs", os.W_OK) and not os.access("/sys/fs/cgroup/cgroup.procs", os.W_OK),
    reason="no control group of the machine can be written to",
)
def test_a_real_control_group_is_read_and_its_change_seen():
    top = Path("/sys/fs/cgroup/cpu")
    first = top.exists()
    group = (top if first else Path("/sys/fs/cgroup")) / f"paceline-test-{os.getpid()}"
    group.mkdir()

    def limit(quota_us):
        if first:
            (group / "cpu.cfs_quota_us").write_text(str(quota_us))
        elif (group / "cpu.max").exists():
            (group / "cpu.max").write_text(f"{quota_us} 100000")
        else:
            pytest.skip("the cpu controller is not enabled for new groups")

    code = (
        "import sys; from paceline.train._share import CpuShare\n"
        "share = CpuShare()\n"
        "for _ in sys.stdin: print(share.read(), flush=True)"
    )
    environment = {"PYTHONPATH": str(Path(__file__).parents[3] / "include")}
    try:
        limit(70_000)
        with subprocess.Popen(
            [
                sys.executable,
                "-c",
                f"import os; open({str(group / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))\n{code}",
            ],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            seen = []
            for quota_us in (70_000, 135_000):
                limit(quota_us)
                process.stdin.write("?\n")
                process.stdin.flush()
                seen.append(float(process.stdout.readline()))
            process.stdin.close()
            process.wait(timeout=10)
        assert seen == [0.7, 1.35]
    finally:
        deadline_s = time.monotonic() + 5
        while group.exists() and time.monotonic() < deadline_s:
            try:
                group.rmdir()
            except OSError:  # the kernel lets go of a process a moment after it has ended
                time.sleep(0.01)


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


class Share:
    def __init__(self, cores):
        self.cores = cores

    def read(self):
        return self.cores


def test_threads_are_the_share_rounded_up_and_capped_by_the_cores_there_are():
    assert threads_for(0.05, cores=8) == 1
    assert threads_for(110_000 / 100_000 - 0.1, cores=8) == 1
    assert threads_for(3.2, cores=8) == 4
    assert threads_for(64.0, cores=8) == 8


@pytest.mark.usefixtures("two_threads")
def test_threads_follow_the_share_and_come_back_when_the_limit_is_lifted():
    share = Share(0.4)
    threads = Threads(None, share)
    counts = []
    for share.cores in (0.4, None, 1.0):
        threads.follow()
        counts.append(torch.get_num_threads())
    assert counts == [1, 2, 1]


@pytest.mark.usefixtures("two_threads")
def test_without_any_limit_the_thread_count_is_left_alone():
    Threads(None, Share(None)).follow()
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_a_change_of_the_share_is_seen_at_the_next_batch_half_a_second_on(monkeypatch, tmp_path, clock, recorder):
    control = tmp_path / "control.json"
    monkeypatch.setenv("PACELINE_CONTROL", str(control))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    control.write_text(json.dumps({"devices": 2.5}))
    counts = []
    for batch in Loop(range(6), display=recorder):
        counts.append(torch.get_num_threads())
        if batch == 0:
            control.write_text(json.dumps({"devices": 1.0}))
        clock.now_s += 0.2
    assert counts == [3, 3, 3, 1, 1, 1]
    assert recorder.shown[-1].threads == 1


@pytest.mark.usefixtures("two_threads")
def test_a_fixed_thread_count_stays_whatever_the_share_is(monkeypatch, tmp_path):
    control = tmp_path / "control.json"
    control.write_text('{"devices": 2}')
    monkeypatch.setenv("PACELINE_CONTROL", str(control))
    assert [torch.get_num_threads() for _ in track("ab", threads=1)] == [1, 1]
