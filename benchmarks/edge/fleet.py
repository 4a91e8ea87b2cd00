"""An emulated fleet like the one of Deep-Edge: a quick device, three slow ones, and a parameter server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from paceline.fleet import BackgroundApp, Machine
from paceline.profiles.rehearsal import TrainingSpec
from paceline.testing.emulated_device import EmulatedDevice, remove_left

HERE = Path(__file__).parent
STITCHING = HERE.parents[1] / "dags" / "edge" / "stitching.py"
TRAINER, NEIGHBOUR = "paceline-trainer:latest", "paceline-neighbour:latest"
MEMORY_GIB = 1.5
LATENCY_MS = 500  # an application has to have one; what is borne is judged by limits of the benchmarks' own
# Name to kind, cores, and the processor that it is a part of: what a processor has is never all given away, as who has
# a part of a full one is slowed down by others. A Jetson TX2 does 2.8 times as many operations a second as a Nano. An
# application must leave a part of its device free: on a full one, how busy it is does not tell what else runs there.
DEVICES = {
    "tx2": ("tx2", 0.67, 0),
    "nano-1": ("nano", 0.24, 1),
    "nano-2": ("nano", 0.24, 1),
    "nano-3": ("nano", 0.24, 1),
}
SERVER = ("pi", 0.2, 0)


@dataclass(frozen=True)
class EmulatedFleet:
    """The devices that train, the parameter server, and what reads their usage."""

    machines: list[Machine]
    server: Machine
    devices: dict[str, EmulatedDevice]


@contextmanager
def emulated_fleet(name: str = "bench") -> Iterator[EmulatedFleet]:
    """Make the devices; needs root, and an engine on this machine. What a killed run has left goes, if empty."""
    app = BackgroundApp(name="stitching", latency_ms=LATENCY_MS, image=NEIGHBOUR, script=str(STITCHING))
    with ExitStack() as stack:
        devices, machines = {}, []
        for machine, (kind, cores, processor) in {**DEVICES, "server": SERVER}.items():
            remove_left(f"{name}-{machine}")
            device = EmulatedDevice(f"{name}-{machine}", cores, int(MEMORY_GIB * 2**30), processor)
            devices[machine] = stack.enter_context(device)
            machines.append(
                Machine(
                    name=machine,
                    kind=kind,
                    cores=cores,
                    memory_gib=MEMORY_GIB,
                    cgroup_parent=device.cgroup_parent,
                    background=() if machine == "server" else (app,),
                )
            )
        yield EmulatedFleet(machines[:-1], machines[-1], devices)


def training() -> TrainingSpec:
    """What is trained."""
    return TrainingSpec(HERE / "train.py", TRAINER)
