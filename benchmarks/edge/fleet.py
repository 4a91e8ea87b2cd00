"""An emulated fleet like that of Deep-Edge: one fast device, three slow devices, and a parameter server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from paceline.fleet import BackgroundApp, Machine
from paceline.profiles.measured_training import TrainingSpec
from paceline.testing.emulated_device import EmulatedDevice, remove_old_groups

HERE = Path(__file__).parent
STITCHING = HERE.parents[1] / "dags" / "edge" / "stitching.py"
TRAINER, NEIGHBOUR = "paceline-trainer:latest", "paceline-neighbour:latest"
MEMORY_GIB = 1.5
LATENCY_MS = 500  # required by BackgroundApp; the benchmarks apply other limits
# Kind, cores and processor of each device. Some capacity of each processor stays free, because containers on a full
# processor slow each other down. A Jetson TX2 does 2.8 times as many operations per second as a Nano. An application
# must not fill its device: the CPU usage of a full device does not show any other load.
DEVICES = {
    "tx2": ("tx2", 0.67, 0),
    "nano-1": ("nano", 0.24, 1),
    "nano-2": ("nano", 0.24, 1),
    "nano-3": ("nano", 0.24, 1),
}
SERVER = ("pi", 0.2, 0)


@dataclass(frozen=True)
class EmulatedFleet:
    """The devices that train, the parameter server, and the emulated devices that report their usage."""

    machines: list[Machine]
    server: Machine
    devices: dict[str, EmulatedDevice]


@contextmanager
def emulated_fleet(name: str = "bench") -> Iterator[EmulatedFleet]:
    """Create the devices, and remove those that a killed run left behind; needs root and an engine on this machine."""
    app = BackgroundApp(name="stitching", latency_ms=LATENCY_MS, image=NEIGHBOUR, script=str(STITCHING))
    with ExitStack() as stack:
        devices, machines = {}, []
        for machine, (kind, cores, processor) in {**DEVICES, "server": SERVER}.items():
            remove_old_groups(f"{name}-{machine}")
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


def training_spec() -> TrainingSpec:
    """Return the training code of the benchmarks."""
    return TrainingSpec(HERE / "train.py", TRAINER)
