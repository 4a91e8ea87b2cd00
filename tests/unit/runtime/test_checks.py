"""Validation of a JobSpec, and the digest that identifies a job's specification."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest

from paceline.errors import InvalidInputError
from paceline.runtime import DockerOptions, JobSpec, TeamNetwork
from paceline.runtime.checks import check_capacity, check_spec, placed_files, spec_digest


@dataclasses.dataclass(frozen=True)
class OtherOptions:
    """The options of another runtime."""

    network: str


@pytest.fixture
def spec(tmp_path: Path) -> JobSpec:
    script = tmp_path / "train.py"
    script.write_text("print(1)")
    data = tmp_path / "data"
    (data / "deep").mkdir(parents=True)
    (data / "deep" / "a.bin").write_bytes(b"a")
    return JobSpec(
        name="job-1", command=["python", "train.py"], devices=1.5, files={"train.py": script}, inputs={"data": data}
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", ""),
        ("name", "Upper"),
        ("name", "../x"),
        ("name", "x" * 201),
        ("command", []),
        ("command", "python train.py"),
        ("command", ["python", ""]),
        ("devices", 0),
        ("devices", -1.0),
        ("devices", float("nan")),
        ("devices", float("inf")),
        ("devices", True),
        ("devices", "2"),
        ("memory_bytes", 1000),
        ("memory_bytes", 1e9),
        ("max_processes", 0),
        ("disk_bytes", 1000),
        *(
            ("user", user)
            for user in ("root", "abc", "", "1:x", "1:", ":1", "-1", "-1:0", "1:-1", "1 ", "1\n", "٣", 1, None)
        ),
        *(("user", user) for user in ("2147483648", "1:2147483648", "1:99999999999", "0", "00", "0:0", "0:1")),
        ("environment", {"A B": "x"}),
        ("environment", {"A": "x\0y"}),
        ("files", {"/etc/x": Path(__file__)}),
        ("files", {"../x": Path(__file__)}),
        ("files", {"x": Path(__file__).parent}),
        ("inputs", {"a/../../x": Path(__file__)}),
        ("inputs", {"x": Path("/nowhere/at/all")}),
        ("options", {"network": "bridge"}),
        ("options", DockerOptions),
    ],
)
def test_invalid_value_is_rejected_with_its_field(spec: JobSpec, field: str, value: Any) -> None:
    with pytest.raises(InvalidInputError) as raised:
        check_spec(dataclasses.replace(spec, **{field: value}))
    assert raised.value.field == field
    assert "expected" in str(raised.value)


def test_root_is_rejected_unless_allowed(spec: JobSpec) -> None:
    for user in ("0", "0:0", "0:5"):
        with pytest.raises(InvalidInputError, match=r"user: got .*, expected an unprivileged user, .* or allow_root"):
            check_spec(dataclasses.replace(spec, user=user))
        check_spec(dataclasses.replace(spec, user=user, allow_root=True))
    for user in ("1", "1000:0", "65532:65532", "2147483647:2147483647"):
        check_spec(dataclasses.replace(spec, user=user))
    for user in ("root", "-1:0", "2147483648"):
        with pytest.raises(InvalidInputError, match=r"user: got .*, expected 'uid' or 'uid:gid'"):
            check_spec(dataclasses.replace(spec, user=user, allow_root=True))


def test_error_message_omits_values_of_environment_variables(spec: JobSpec) -> None:
    with pytest.raises(InvalidInputError) as raised:
        check_spec(dataclasses.replace(spec, environment={"TOKEN": "s3cret\0"}))
    assert "s3cret" not in str(raised.value)


def test_files_of_input_folders_are_placed_below_input(spec: JobSpec, tmp_path: Path) -> None:
    assert list(placed_files(spec)) == [
        ("work/train.py", tmp_path / "train.py"),
        ("input/data/deep/a.bin", tmp_path / "data" / "deep" / "a.bin"),
    ]


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"devices": 0.2, "min_devices": 0.1, "max_devices": 2.0, "labels": {"try": "2"}}, True),
        ({"command": ["python", "x.py"]}, False),
        ({"environment": {"A": "1"}}, False),
        ({"image": "x"}, False),
        ({"memory_bytes": None}, False),
        ({"disk_bytes": None}, False),
        ({"read_only": True}, False),
        ({"inputs": {}}, False),
        ({"team_network": TeamNetwork("net")}, False),
        ({"options": DockerOptions(network="bridge")}, False),
        ({"options": OtherOptions(network="bridge")}, False),
    ],
)
def test_only_allocation_and_labels_do_not_affect_the_digest(spec: JobSpec, change: dict[str, Any], same: bool) -> None:
    assert (spec_digest(dataclasses.replace(spec, **change)) == spec_digest(spec)) is same


def test_digest_depends_on_the_values_of_the_network_and_of_the_options(spec: JobSpec) -> None:
    networks = [TeamNetwork("net"), TeamNetwork("net", published={1: ("10.0.0.5", 2)}), TeamNetwork("net", "a")]
    options = [DockerOptions(), DockerOptions("bridge"), DockerOptions(None, "/gate"), OtherOptions("bridge")]
    changes: list[dict[str, Any]] = [{"team_network": one} for one in networks] + [{"options": one} for one in options]
    digests = [spec_digest(dataclasses.replace(spec, **change)) for change in changes]
    assert len(set(digests)) == len(changes)


def test_digest_depends_on_file_contents(spec: JobSpec, tmp_path: Path) -> None:
    before = spec_digest(spec)
    (tmp_path / "data" / "deep" / "a.bin").write_bytes(b"b")
    assert spec_digest(spec) != before


def test_digest_depends_on_names_that_are_not_utf_8(spec: JobSpec, tmp_path: Path) -> None:
    digests = {spec_digest(spec)}
    for number, name in enumerate((b"\xe8", b"\xe9")):
        (tmp_path / "data" / os.fsdecode(name)).touch()
        digests.add(spec_digest(spec))
        assert len(digests) == number + 2
        (tmp_path / "data" / os.fsdecode(name)).unlink()


def test_share_of_gpus_is_at_most_their_number(spec: JobSpec) -> None:
    shared = dataclasses.replace(spec, shares_gpus=True, gpus=2, cores_per_device=float("inf"))
    check_spec(shared)
    with pytest.raises(InvalidInputError, match=r"devices: got 2.5, expected at most 2, the number of the job's GPUs"):
        check_spec(dataclasses.replace(shared, devices=2.5))
    with pytest.raises(InvalidInputError, match="cores_per_device: got inf"):
        check_spec(dataclasses.replace(shared, shares_gpus=False))
    assert spec_digest(shared) != spec_digest(dataclasses.replace(shared, shares_gpus=False))


@pytest.mark.parametrize(
    ("gpus", "shares"), [(0.5, False), (1.5, True), (-0.5, True), (-1, False), (float("nan"), True), ("1", False)]
)
def test_part_of_a_gpu_is_less_than_one_and_for_a_job_that_keeps_to_it(
    spec: JobSpec, gpus: float, shares: bool
) -> None:
    check_spec(dataclasses.replace(spec, gpus=0.5, devices=0.5, shares_gpus=True))
    with pytest.raises(InvalidInputError, match=rf"gpus: got {gpus!r}, expected a whole number; only a training"):
        check_spec(dataclasses.replace(spec, gpus=gpus, devices=0.1, shares_gpus=shares))


def test_cores_of_a_job_with_a_share_of_its_gpus_are_those_of_all_gpus(spec: JobSpec) -> None:
    shared = dataclasses.replace(spec, shares_gpus=True, gpus=2, devices=0.5, cores_per_device=4.0)
    check_capacity(shared, 8.0)
    with pytest.raises(
        InvalidInputError, match=r"cores_per_device: got 4.0, expected at most 3.5, the number of cores"
    ):
        check_capacity(shared, 7.0)
    of_all = dataclasses.replace(shared, cores_per_device=float("inf"))
    check_capacity(of_all, 7.0)
    assert [one.cores(16.0) for one in (shared, of_all)] == [8.0, 16.0]
