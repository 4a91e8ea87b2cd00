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
from paceline.train._thread_choice import ThreadChoice
from paceline.train._threads import Threads

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
            process.wait(timeout=60)
        assert seen == [0.7, 1.35]
    finally:
        deadline_s = time.monotonic() + 60
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


class Model:
    """A training as physics: with so many threads, batches for each CPU second and cores that they keep busy."""

    def __init__(self, batches_per_cpu_s, cores):
        self.batches_per_cpu_s = dict(enumerate(batches_per_cpu_s, start=1))
        self.cores = dict(enumerate(cores, start=1))

    def speed(self, threads, share):
        return self.batches_per_cpu_s[threads] * min(share, self.cores[threads])

    def train(self, choice, share_at, for_s):
        """Returns the batches done and the thread counts used, looked at twice a second as the loop does."""
        now_s = cpu_s = look_s = 0.0
        done, threads = 0, choice.choose(share_at(0.0), 0, 0.0, 0.0)
        used = [threads]
        while now_s < for_s:
            share = share_at(now_s)
            batch_s = 1 / self.speed(threads, share)
            now_s, cpu_s, done = now_s + batch_s, cpu_s + batch_s * min(share, self.cores[threads]), done + 1
            if now_s >= look_s:
                threads, look_s = choice.choose(share, done, cpu_s, now_s), now_s + 0.5
                used.append(threads)
        return done, used


# Measured: a network whose threads wait for each other, one that a second thread slows down, and a tiny one.
WAITS = Model([2.85, 3.86], [1.0, 1.37])
SLOWED = Model([4.6, 3.4], [1.0, 1.65])
TINY = Model([100.0, 45.0], [1.0, 2.0])
WIDE = Model([1 / (1 + 0.05 * threads) for threads in range(16)], [0.8 * threads + 1.0 for threads in range(16)])


@pytest.mark.parametrize("share", [0.5, 1.0, 1.2, 1.6, 2.0])
@pytest.mark.parametrize("model", [WAITS, SLOWED, TINY], ids=["waits", "slowed", "tiny"])
def test_the_best_thread_count_for_a_share_is_found_in_seconds(model, share):
    done, used = model.train(ThreadChoice(cores=2), lambda now_s: share, for_s=120)
    best = max((1, 2), key=lambda threads: model.speed(threads, share))
    assert used[-1] == best
    assert done >= 0.985 * 120 * model.speed(best, share)


def test_no_more_threads_than_cores_and_the_first_guess_is_the_share_rounded_up():
    assert ThreadChoice(cores=8).choose(0.05, 0, 0.0, 0.0) == 1
    assert ThreadChoice(cores=8).choose(110_000 / 100_000 - 0.1, 0, 0.0, 0.0) == 1
    assert ThreadChoice(cores=8).choose(3.2, 0, 0.0, 0.0) == 4
    assert ThreadChoice(cores=8).choose(64.0, 0, 0.0, 0.0) == 8
    _, used = WIDE.train(ThreadChoice(cores=4), lambda now_s: 8.0, for_s=60)
    assert max(used) == 4


def test_on_many_cores_it_climbs_to_the_best_count_and_follows_a_share_that_jumps():
    for share in (4.0, 8.0, 15.0):
        done, _ = WIDE.train(ThreadChoice(cores=16), lambda now_s, share=share: share, for_s=600)
        best = max(WIDE.speed(threads, share) for threads in range(1, 17))
        assert done >= 0.95 * 600 * best
    _, used = WIDE.train(ThreadChoice(cores=16), lambda now_s: 1.0 if now_s < 60 else 12.0, for_s=62)
    assert used[-1] >= 6  # at once, not thread by thread


def test_a_share_that_changes_every_second_does_not_keep_it_from_learning():
    _, used = TINY.train(ThreadChoice(cores=2), lambda now_s: 1.4 + 0.1 * (int(now_s) % 3), for_s=20)
    assert used[-1] == 1


@pytest.mark.usefixtures("two_threads")
def test_threads_follow_the_share_and_come_back_when_the_limit_is_lifted():
    share = Share(0.4)
    threads = Threads(None, share)
    counts = []
    for share.cores in (0.4, None, 1.0):
        threads.follow(done=0, now_s=0.0)
        counts.append(torch.get_num_threads())
    assert counts == [1, 2, 1]


@pytest.mark.usefixtures("two_threads")
def test_without_any_limit_the_thread_count_is_left_alone():
    Threads(None, Share(None)).follow(done=0, now_s=0.0)
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
