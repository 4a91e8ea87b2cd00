import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from paceline.runtime import cgroups
from paceline.train import Loop, track
from paceline.train.pacing._thread_choice import ThreadChoice
from paceline.train.pacing.share import CpuShare
from paceline.train.pacing.threads import Threads

from .machines import INCLUDE


def v1_mount(root):
    return f"32 31 0:29 {root} /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct"


V2_MOUNT = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"
BOTH_MOUNTS = f"{v1_mount('/')}\n41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw"
MOUNT_WITH_A_SPACE = V2_MOUNT.replace("/sys/fs/cgroup", r"/sys/fs/cgroup\040two")
NESTED = {
    "user.slice": "300000 100000",
    "user.slice/app.slice": "50000 100000",
    "user.slice/app.slice/job.scope": "max 100000",
}
ABOVE_V1 = {f"cpu,cpuacct/{cgroup}": quota for cgroup, quota in (("a", 75_000), ("a/b", 90_000), ("a/b/c", -1))}
ABOVE_REVERSED = {cgroup.replace("cpu,cpuacct", "cpuacct,cpu"): quota for cgroup, quota in ABOVE_V1.items()}
REVERSED = v1_mount("/").replace("cpu,cpuacct", "cpuacct,cpu")
OTHER_MOUNT = f"40 31 0:29 /b /sys/fs/cgroup/other rw - cgroup cgroup rw,cpu,cpuacct\n{v1_mount('/a')}"
TWO_MOUNTS = f"{v1_mount('/a/b')}\n40 31 0:29 / /sys/fs/cgroup/host rw - cgroup cgroup rw,cpu,cpuacct"
NESTED_V1 = {"cpu,cpuacct": -1, "cpu,cpuacct/b": 25_000}


def read_share(root, cgroup, mounts, quotas, control=None):
    """Return the share of a process on a machine whose control groups are emulated below ``root``.

    A quota is the text "quota period" (version 2), or the microseconds in a period of 100 ms (version 1).
    """
    proc = root / "proc/self"
    proc.mkdir(parents=True)
    if cgroup:
        (proc / "cgroup").write_text(cgroup + "\n")
        (proc / "mountinfo").write_text(mounts + "\n")
    for name, quota in quotas.items():
        folder = root / "sys/fs/cgroup" / name
        folder.mkdir(parents=True, exist_ok=True)
        if isinstance(quota, str):
            (folder / "cpu.max").write_text(quota + "\n")
        else:
            (folder / "cpu.cfs_quota_us").write_text(f"{quota}\n")
            (folder / "cpu.cfs_period_us").write_text("100000\n")
    return CpuShare({"PACELINE_CONTROL": str(control)} if control else {}, root).read()


GROUPS = {
    "none": ("", "", {}, None),
    "version 2 in a container": ("0::/", V2_MOUNT, {"": "150000 100000"}, 1.5),
    "version 2 without a limit": ("0::/", V2_MOUNT, {"": "max 100000"}, None),
    "the tightest of nested groups": ("0::/user.slice/app.slice/job.scope", V2_MOUNT, NESTED, 0.5),
    "a space in a mount point": ("0::/", MOUNT_WITH_A_SPACE, {"../cgroup two": "50000 100000"}, 0.5),
    "the path of the host": ("4:cpu,cpuacct:/docker/a", v1_mount("/docker/a"), {"cpu,cpuacct": 60_000}, 0.6),
    "below the container": ("4:cpu,cpuacct:/docker/a/b", v1_mount("/docker/a"), NESTED_V1, 0.25),
    "a mount elsewhere": ("4:cpu,cpuacct:/", v1_mount("/../.."), {"cpu,cpuacct": 60_000}, 0.6),
    "version 1 without a limit": ("4:cpu,cpuacct:/", v1_mount("/"), {"cpu,cpuacct": -1}, None),
    "the tightest above, version 1": ("4:cpu,cpuacct:/a/b/c", v1_mount("/"), ABOVE_V1, 0.75),
    "controllers named the other way round": ("4:cpuacct,cpu:/a/b/c", REVERSED, ABOVE_REVERSED, 0.75),
    "another mount shows the parents": ("4:cpu,cpuacct:/a/b", TWO_MOUNTS, {"cpu,cpuacct": -1, "host/a": 40_000}, 0.4),
    "a mount of another group": ("4:cpu,cpuacct:/a", OTHER_MOUNT, {"cpu,cpuacct": 80_000, "other": 10_000}, 0.8),
    "both versions": ("3:cpuset:/\n4:cpu,cpuacct:/\n0::/", BOTH_MOUNTS, {"cpu,cpuacct": 120_000}, 1.2),
}
for nonsense in ("", "nonsense", "0 100000", "100000 0", "-5 100000"):
    GROUPS[f"nonsense {nonsense!r}"] = ("0::/", V2_MOUNT, {"": nonsense}, None)


@pytest.mark.parametrize(("cgroup", "mounts", "quotas", "share"), GROUPS.values(), ids=GROUPS)
def test_share_is_the_quota_of_the_control_groups(tmp_path, cgroup, mounts, quotas, share):
    assert read_share(tmp_path, cgroup, mounts, quotas) == share


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
def test_control_file_takes_precedence_over_control_groups(tmp_path, content, share):
    control = tmp_path / "control.json"
    control.write_text(content)
    assert read_share(tmp_path, "0::/", V2_MOUNT, {"": "150000 100000"}, control) == share


@pytest.fixture
def cgroup():
    """Yield a new control group of the kernel."""
    made = cgroups.create(f"paceline-test-{os.getpid()}")
    if made is None:
        pytest.skip("no permission to create control groups")
    yield made
    assert made.remove(timeout_s=60)


def test_change_of_a_real_control_group_is_read(cgroup):
    code = """
import sys
from paceline.train.pacing.share import CpuShare
share = CpuShare() if sys.stdin.readline() else None  # after the process has joined the group
for _ in sys.stdin:
    print(share.read(), flush=True)
"""
    environment = {"PYTHONPATH": str(INCLUDE)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "bufsize": 1, "text": True}
    with subprocess.Popen([sys.executable, "-c", code], env=environment, **pipes) as process:
        cgroup.join(process.pid)
        process.stdin.write("it is\n")
        seen = []
        for devices in (0.7, 0.35):
            cgroup.set_devices(devices)
            process.stdin.write("?\n")
            seen.append(float(process.stdout.readline()))
    assert seen == [0.7, 0.35]


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


class PerformanceModel:
    """A model of performance that maps thread counts to batches per CPU second and to busy cores."""

    def __init__(self, batches_per_cpu_s, cores):
        self.batches_per_cpu_s = dict(enumerate(batches_per_cpu_s, start=1))
        self.cores = dict(enumerate(cores, start=1))

    def speed(self, threads, share):
        return self.batches_per_cpu_s[threads] * min(share, self.cores[threads])

    def train(self, choice, share_at, for_s):
        """Return the number of batches and the used thread counts. Like the loop, choose a count twice per second."""
        now_s = cpu_s = next_read_s = 0.0
        done, threads = 0, choice.choose(share_at(0.0), 0, 0.0, 0.0)
        used = [threads]
        while now_s < for_s:
            share = share_at(now_s)
            batch_s = 1 / self.speed(threads, share)
            now_s, cpu_s, done = now_s + batch_s, cpu_s + batch_s * min(share, self.cores[threads]), done + 1
            if now_s >= next_read_s:
                threads, next_read_s = choice.choose(share, done, cpu_s, now_s), now_s + 0.5
                used.append(threads)
        return done, used


# Measured on three networks: threads wait for each other, a second thread slows training down, and a tiny network.
WAITS = PerformanceModel([2.85, 3.86], [1.0, 1.37])
SLOWED = PerformanceModel([4.6, 3.4], [1.0, 1.65])
TINY = PerformanceModel([100.0, 45.0], [1.0, 2.0])
WIDE = PerformanceModel(
    [1 / (1 + 0.05 * threads) for threads in range(16)], [0.8 * threads + 1.0 for threads in range(16)]
)


@pytest.mark.parametrize("share", [0.5, 1.0, 1.2, 1.6, 2.0])
@pytest.mark.parametrize("model", [WAITS, SLOWED, TINY], ids=["waits", "slowed", "tiny"])
def test_best_thread_count_for_a_cpu_share_is_found(model, share):
    done, used = model.train(ThreadChoice(cores=2), lambda now_s: share, for_s=120)
    best = max((1, 2), key=lambda threads: model.speed(threads, share))
    assert used[-1] == best
    assert done >= 0.985 * 120 * model.speed(best, share)


def test_first_thread_count_is_the_share_rounded_up_but_at_most_the_cores():
    assert ThreadChoice(cores=8).choose(0.05, 0, 0.0, 0.0) == 1
    assert ThreadChoice(cores=8).choose(110_000 / 100_000 - 0.1, 0, 0.0, 0.0) == 1
    assert ThreadChoice(cores=8).choose(3.2, 0, 0.0, 0.0) == 4
    assert ThreadChoice(cores=8).choose(64.0, 0, 0.0, 0.0) == 8
    _, used = WIDE.train(ThreadChoice(cores=4), lambda now_s: 8.0, for_s=60)
    assert max(used) == 4


def test_thread_count_rises_on_many_cores_and_follows_jumps_of_the_share():
    for share in (4.0, 8.0, 15.0):
        done, _ = WIDE.train(ThreadChoice(cores=16), lambda now_s, share=share: share, for_s=600)
        best = max(WIDE.speed(threads, share) for threads in range(1, 17))
        assert done >= 0.95 * 600 * best
    _, used = WIDE.train(ThreadChoice(cores=16), lambda now_s: 1.0 if now_s < 60 else 12.0, for_s=62)
    assert used[-1] >= 6  # the thread count changes immediately, not thread by thread


def test_best_thread_count_is_found_while_the_share_changes():
    _, used = TINY.train(ThreadChoice(cores=2), lambda now_s: 1.4 + 0.1 * (int(now_s) % 3), for_s=20)
    assert used[-1] == 1


@pytest.mark.usefixtures("two_threads")
def test_thread_count_follows_the_share_and_is_unchanged_without_a_limit():
    share = SimpleNamespace()
    share.read = lambda: share.cores
    threads = Threads(None, share)
    counts = []
    for share.cores in (None, 0.4, None, 1.0):
        threads.adapt(done=0, now_s=0.0)
        counts.append(torch.get_num_threads())
    assert counts == [2, 1, 2, 1]


@pytest.mark.usefixtures("two_threads")
def test_share_is_read_every_half_second_between_batches(monkeypatch, tmp_path, clock, recorder):
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
def test_fixed_thread_count_ignores_the_share(monkeypatch, tmp_path):
    control = tmp_path / "control.json"
    control.write_text('{"devices": 2}')
    monkeypatch.setenv("PACELINE_CONTROL", str(control))
    assert [torch.get_num_threads() for _ in track("ab", threads=1)] == [1, 1]
