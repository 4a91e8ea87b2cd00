"""Location and contents of cgroups, on v1 and v2.

Ordinary files replace those of the kernel, so a machine with one version can test both.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from paceline.runtime import cgroups

V1_FILES = {
    "cpu": {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "-1"},
    "memory": {"memory.limit_in_bytes": "9", "memory.memsw.limit_in_bytes": "9", "memory.usage_in_bytes": "900"},
    "cpuacct": {"cpuacct.usage": "1500000000"},
    "pids": {"pids.max": "max"},
}
V2_FILES = {
    "cpu.max": "max 100000",
    "cpu.stat": "usage_usec 2500000\nuser_usec 1\n",
    "memory.max": "max",
    "memory.swap.max": "max",
    "memory.oom.group": "0",
    "memory.current": "900",
    "memory.stat": "anon 1\ninactive_file 200\n",
    "memory.events": "oom 1\noom_kill 1\n",
    "pids.max": "max",
}


@pytest.fixture
def new_cgroup_files(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return the files of a new cgroup. A name that contains a folder applies only to cgroups in that folder."""
    contents = {"cgroup.procs": ""}
    mkdir = Path.mkdir

    def make_cgroup(self: Path, *arguments: object, **named: object) -> None:
        mkdir(self)
        for name, value in contents.items():
            where, _, file = name.rpartition("/")
            if where in ("", self.parent.name):
                (self / file).write_text(value)

    monkeypatch.setattr(Path, "mkdir", make_cgroup)
    return contents


def test_v2_cgroup_is_a_sibling_of_a_cgroup_with_processes(tmp_path: Path, new_cgroup_files: dict[str, str]) -> None:
    slice_, own = tmp_path / "user.slice", tmp_path / "user.slice" / "airflow.service"
    slice_.mkdir()
    own.mkdir()
    for folder in (tmp_path, slice_, own):
        (folder / "cgroup.controllers").write_text("cpu memory pids")
        (folder / "cgroup.subtree_control").write_text("")
    # Only the slice delegates controllers, so a cgroup below this process's cgroup would have no cpu.max.
    new_cgroup_files.update({f"user.slice/{name}": value for name, value in V2_FILES.items()})
    mounts = f"30 24 0:26 / {tmp_path} rw,nosuid - cgroup2 cgroup2 rw"
    group = cgroups.create("job", mounts, "0::/user.slice/airflow.service")
    assert group is not None
    assert (group.cpu, group.unified) == (slice_ / "job", True)
    assert not (own / "job").exists() or not list((own / "job").glob("cpu*"))
    group.set_devices(0.75)
    assert (group.cpu / "cpu.max").read_text().startswith("75000 100000")
    group.set_devices(0.0001)
    assert (group.cpu / "cpu.max").read_text().startswith("1000 100000")
    assert group.set_memory(12345)
    assert (group.cpu / "memory.max").read_text().startswith("12345")
    assert (group.cpu / "memory.oom.group").read_text() == "1"
    group.set_processes(77)
    assert (group.cpu / "pids.max").read_text().startswith("77")
    assert (group.cpu_seconds(), group.memory_bytes(), group.killed_for_memory()) == (2.5, 700, True)
    assert cgroups.Group.from_json(group.to_json()) == group


def test_v2_cgroup_of_this_process_delegates_controllers_only_if_it_is_the_root(tmp_path: Path) -> None:
    """Elsewhere, the kernel accepts "+cpu" but then no process in a cgroup below this process's cgroup."""
    for name in ("root", "service"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cgroup.subtree_control").write_text("")
    (tmp_path / "service" / "cgroup.type").write_text("domain\n")
    for name in ("root", "service"):
        cgroups.create("job", f"30 24 0:26 / {tmp_path}/{name} rw - cgroup2 cgroup2 rw", "0::/")
    assert (tmp_path / "root" / "cgroup.subtree_control").read_text() != ""
    assert (tmp_path / "service" / "cgroup.subtree_control").read_text() == ""


def test_v2_cgroup_below_a_threaded_cgroup_is_not_used(tmp_path: Path, new_cgroup_files: dict[str, str]) -> None:
    slice_, own = tmp_path / "slice", tmp_path / "slice" / "service"
    slice_.mkdir()
    own.mkdir()
    for folder in (slice_, own):
        (folder / "cgroup.controllers").write_text("cpu")
        new_cgroup_files.update({f"{folder.name}/{name}": value for name, value in V2_FILES.items()})
    (own / "cgroup.type").write_text("domain threaded\n")
    new_cgroup_files.update({"service/cgroup.type": "domain invalid\n", "slice/cgroup.type": "domain\n"})
    group = cgroups.create("job", f"30 24 0:26 / {tmp_path} rw - cgroup2 cgroup2 rw", "0::/slice/service")
    assert group is not None
    assert group.cpu == slice_ / "job"


def test_v1_cgroup_has_a_folder_for_each_controller(tmp_path: Path, new_cgroup_files: dict[str, str]) -> None:
    for controller in V1_FILES:
        (tmp_path / controller).mkdir()
    new_cgroup_files.update({f"{c}/{name}": value for c, files in V1_FILES.items() for name, value in files.items()})
    mounts = "\n".join(f"30 24 0:2 / {tmp_path}/{c} rw - cgroup cgroup rw,{c}" for c in V1_FILES)
    group = cgroups.create("job", mounts, "\n".join(f"{i}:{c}:/" for i, c in enumerate(V1_FILES)))
    assert group is not None
    assert not group.unified
    assert len(group.folders) == 4
    group.set_devices(1.5)
    assert (group.cpu / "cpu.cfs_quota_us").read_text() == "150000"
    assert group.cpu_seconds() == 1.5
    assert cgroups.Group.from_json(group.to_json()) == group


def test_v1_quota_above_that_of_an_ancestor_leaves_the_ancestor_as_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel rejects such a quota, for example when a launcher lifts the limit of a job that it stops."""
    write = cgroups._write

    def refuse_more_than_one_core(path: Path, value: str) -> None:
        if path.name == "cpu.cfs_quota_us" and int(value) > 100_000:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        write(path, value)

    monkeypatch.setattr(cgroups, "_write", refuse_more_than_one_core)
    for name in V1_FILES["cpu"]:
        (tmp_path / name).write_text("")
    group = cgroups.Group(cpu=tmp_path, memory=None, account=None, processes=None, unified=False)
    for devices, quota in ((2.0, "-1"), (0.001, "1000")):
        (tmp_path / "cpu.cfs_quota_us").write_text("")
        group.set_devices(devices)
        assert (tmp_path / "cpu.cfs_quota_us").read_text() == quota


@pytest.mark.parametrize("mounted", ["cpu,cpuacct", "cpuacct,cpu", "cpu,cpuacct,memory,pids"])
def test_v1_controllers_mounted_together_share_a_folder(
    tmp_path: Path, new_cgroup_files: dict[str, str], mounted: str
) -> None:
    together = mounted.split(",")
    folders = {controller: mounted if controller in together else controller for controller in V1_FILES}
    for folder in set(folders.values()):
        (tmp_path / folder).mkdir()
    new_cgroup_files.update(
        {f"{folders[c]}/{name}": value for c, files in V1_FILES.items() for name, value in files.items()}
    )
    lines = sorted(set(folders.values()))
    mounts = "\n".join(f"30 24 0:2 / {tmp_path}/{folder} rw - cgroup cgroup rw,{folder}" for folder in lines)
    group = cgroups.create("job", mounts, "\n".join(f"{i}:{folder}:/" for i, folder in enumerate(lines)))
    assert group is not None
    assert group.account == group.cpu == tmp_path / mounted / "job"
    assert group.folders == list(dict.fromkeys(tmp_path / folders[c] / "job" for c in V1_FILES))
    assert group.cpu_seconds() == 1.5
    assert group.set_memory(12345)
    assert None not in (group.memory, group.processes)


def test_controller_without_its_files_is_not_used(tmp_path: Path, new_cgroup_files: dict[str, str]) -> None:
    (tmp_path / "cpu").mkdir()
    new_cgroup_files.update(V1_FILES["cpu"])
    mounts = f"30 24 0:2 / {tmp_path}/cpu rw - cgroup cgroup rw,cpu,cpuacct"
    group = cgroups.create("job", mounts, "3:cpu,cpuacct:/")
    assert group is not None
    assert (group.folders, group.account, group.cpu_seconds()) == ([tmp_path / "cpu" / "job"], None, None)


def test_create_returns_none_without_permission(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu")
    mounts = f"30 24 0:26 / {tmp_path} ro - cgroup2 cgroup2 ro"
    # An ordinary folder has no cpu.max, like a cgroup without delegated controllers.
    assert cgroups.create("job", mounts, "0::/") is None
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cgroup.controllers"]
    assert cgroups.create("job", "", "0::/") is None


BOTH = "/sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct"


@pytest.mark.parametrize(
    ("mount", "own", "expected"),
    [
        (f"1 0 0:1 / {BOTH}", "3:cpu,cpuacct:/a/b", "/a/b"),
        # In a container without a cgroup namespace, the mount shows only the container's cgroups.
        (f"1 0 0:1 /docker/x {BOTH}", "3:cpu,cpuacct:/docker/x/y", "/y"),
        (f"1 0 0:1 /docker/x {BOTH}", "3:cpu,cpuacct:/", "/"),
    ],
)
def test_own_cgroup_is_found_below_the_mount(mount: str, own: str, expected: str) -> None:
    own_folders = cgroups.own_folders(mount, own)
    assert own_folders["cpu"] == own_folders["cpuacct"] == Path("/sys/fs/cgroup/cpu,cpuacct" + expected)


def test_own_quota_is_the_smallest_quota_of_all_ancestors(tmp_path: Path) -> None:
    inner = tmp_path / "pod" / "worker"
    inner.mkdir(parents=True)
    mounts = f"30 24 0:26 / {tmp_path} rw,nosuid - cgroup2 cgroup2 rw"
    assert cgroups.own_quota(mounts, "0::/pod/worker") is None
    for folder, limit, cores in ((inner, "max", None), (tmp_path / "pod", "150000", 1.5), (inner, "50000", 0.5)):
        (folder / "cpu.max").write_text(f"{limit} 100000\n")
        assert cgroups.own_quota(mounts, "0::/pod/worker") == cores


@pytest.mark.parametrize(("quota", "cores"), [("-1", None), ("250000", 2.5)])
def test_v1_quota_of_minus_one_means_no_limit(tmp_path: Path, quota: str, cores: float | None) -> None:
    (tmp_path / "cpu.cfs_period_us").write_text("100000\n")
    (tmp_path / "cpu.cfs_quota_us").write_text(f"{quota}\n")
    assert cgroups.own_quota(f"30 24 0:26 / {tmp_path} rw - cgroup cgroup rw,cpu", "3:cpu:/") == cores


def set_v1_quotas(top: Path, quotas: dict[str, int]) -> None:
    for group, quota_us in quotas.items():
        (top / group).mkdir(parents=True, exist_ok=True)
        (top / group / "cpu.cfs_quota_us").write_text(f"{quota_us}\n")
        (top / group / "cpu.cfs_period_us").write_text("100000\n")


@pytest.mark.parametrize("mounted", ["cpu", "cpu,cpuacct", "cpuacct,cpu"])
@pytest.mark.parametrize("links", [False, True])
def test_v1_own_quota_is_the_smallest_quota_of_all_ancestors(tmp_path: Path, mounted: str, links: bool) -> None:
    top = tmp_path / "with space" / mounted
    set_v1_quotas(top, {"": -1, "pod": 150_000, "pod/worker": 400_000, "pod/worker/job": -1})
    if links and "," in mounted:
        for name in mounted.split(","):
            (top.parent / name).symlink_to(mounted)
    point = str(top).replace(" ", r"\040")
    mounts = f"30 24 0:26 / {point} rw,relatime shared:7 - cgroup cgroup rw,{mounted}"
    own = f"4:{mounted}:/pod/worker/job\n1:name=systemd:/pod"
    assert cgroups.own_quota(mounts, own) == 1.5
    set_v1_quotas(top, {"pod/worker/job": 50_000})
    assert cgroups.own_quota(mounts, own) == 0.5
    set_v1_quotas(top, {"": 20_000})
    assert cgroups.own_quota(mounts, own) == 0.2


def test_own_quota_includes_ancestors_in_another_mount(tmp_path: Path) -> None:
    # A container without a cgroup namespace may also mount the host's cgroups.
    set_v1_quotas(tmp_path / "own", {"": 200_000})
    set_v1_quotas(tmp_path / "host", {"": -1, "pods": 75_000, "pods/x": 200_000})
    mounts = "\n".join(
        f"{number} 24 0:26 {root} {tmp_path}/{place} rw - cgroup cgroup rw,cpu,cpuacct"
        for number, (root, place) in enumerate([("/pods/x", "own"), ("/", "host")])
    )
    assert cgroups.own_quota(mounts, "4:cpu,cpuacct:/pods/x") == 0.75
    assert cgroups.own_folders(mounts, "4:cpu,cpuacct:/pods/x")["cpu"] == tmp_path / "own"


def test_mount_of_another_cgroup_is_ignored(tmp_path: Path) -> None:
    set_v1_quotas(tmp_path / "other", {"": 10_000})
    set_v1_quotas(tmp_path / "own", {"": 200_000})
    mounts = "\n".join(
        f"1 24 0:26 /pods/{place} {tmp_path}/{place} rw - cgroup cgroup rw,cpu,cpuacct" for place in ("other", "own")
    )
    assert cgroups.own_quota(mounts, "4:cpu,cpuacct:/pods/own") == 2.0
    assert cgroups.own_folders(mounts, "4:cpu,cpuacct:/pods/own")["cpu"] == tmp_path / "own"
