"""The fleet demo: one run of ``retrain_on_edge`` on machines emulated on this computer, alongside camera applications.

Called by ``python -m demo edge``.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

from demo.screen import Screen
from demo.signals import end_on_sigterm
from demo.story import IMAGE, Demo, check_machine, docker_runtime, run_dag
from paceline.airflow.engine_connection import default_engine
from paceline.errors import InvalidInputError, PacelineError, RuntimeUnavailableError
from paceline.fleet import Fleet, Machine, load
from paceline.profiles.neighbours import BACKGROUND
from paceline.profiles.neighbours import IMAGE as NEIGHBOUR_IMAGE
from paceline.runtime import DockerRuntime, JobSpec
from paceline.runtime.docker_errors import engine_call
from paceline.runtime.docker_job import DockerJob
from paceline.testing.emulated_device import emulate_devices
from paceline.testing.emulated_link import emulate_links

DAG = "retrain_on_edge"
LABEL = "paceline.demo"
TRAINING = "train.result"


def run_edge(demo: Demo, screen: Screen) -> dict[str, Any]:
    """Run the demo, write ``summary.json`` and return the summary. Always stops everything that it started."""
    check_machine()
    _check_engine()
    end_on_sigterm()  # the containers and control groups created below must also be removed on SIGTERM
    fleet = load(demo.dags / "edge" / "fleet.yaml")
    for labels in (_camera_labels(demo), _job_labels(demo)):  # containers that a killed demo has left behind
        _remove_containers(labels)

    @contextlib.contextmanager
    def around() -> Iterator[None]:
        screen.show_activity("starting the machines and their applications")
        with emulate_devices(fleet), emulate_links(_docker_client(), fleet), _run_cameras(fleet, demo) as number:
            machines = ", ".join(f"{one.name} ({one.cores:g} of a core)" for one in fleet.machines)
            screen.step("Machines", f"{machines}; each also runs an image-stitching application ({number} containers)")
            try:
                yield
            finally:
                _remove_containers(_job_labels(demo))  # jobs of tasks that were killed with Airflow

    # The applications use most of a small computer, so they start when Airflow and the store are ready.
    return run_dag(demo, screen, {}, around)


def _check_engine() -> None:
    runtime = docker_runtime()
    for image, target in ((IMAGE, "image"), (NEIGHBOUR_IMAGE, "neighbour-image")):
        try:
            runtime.check(JobSpec(name="check", command=["python"], devices=0.1, image=image))
        except RuntimeUnavailableError:
            accepted = "a reachable engine; start a private one with `docker/engine start DIR`"
            raise InvalidInputError("DOCKER_HOST", default_engine(), accepted) from None
        except InvalidInputError:
            raise PacelineError(f"the engine has no image {image}; build it with `make {target}`") from None
    with engine_call("query the engine"):
        driver = _docker_client().info()["CgroupDriver"]
    if os.geteuid() != 0 or driver != "cgroupfs":
        raise PacelineError(
            "the demo emulates machines with control groups, which needs root and an engine with the driver cgroupfs "
            f"(the user is {os.geteuid()}, the driver {driver}); as root, start one with `docker/engine start DIR`"
        )


@contextlib.contextmanager
def _run_cameras(fleet: Fleet, demo: Demo) -> Iterator[int]:
    """Run the machines' camera applications until the block ends; yield the number of containers."""
    runtime = DockerRuntime(_docker_client)
    started: list[DockerJob] = []
    try:
        for machine in fleet.machines:
            for spec in _camera_jobs(machine, demo):
                started.append(runtime.start(spec))
        yield len(started)
    finally:
        for job in started:
            job.remove()


def _camera_jobs(machine: Machine, demo: Demo) -> Iterator[JobSpec]:
    for app in machine.background:
        script = demo.dags / str(app.script)
        yield JobSpec(
            name=f"{DAG}-{machine.name}-{app.name}".replace("_", "-"),
            command=["python", script.name],
            devices=machine.cores,
            image=app.image,
            files={script.name: script},
            memory_bytes=int(machine.memory_gib * 2**30),
            options=machine.job_options(),
            labels={BACKGROUND: app.name, **_camera_labels(demo)},
        )


def _camera_labels(demo: Demo) -> dict[str, str]:
    return {LABEL: demo.run_id}


def _job_labels(demo: Demo) -> dict[str, str]:
    """Return labels that only the jobs of demos in this folder have; another Airflow may use the DAG and the engine."""
    return {"paceline.dag": DAG, "paceline.run": demo.run_id}


def _remove_containers(labels: Mapping[str, str]) -> None:
    """Remove any containers with these labels."""
    runtime = DockerRuntime(_docker_client)
    with contextlib.suppress(PacelineError):
        runtime.remove_all(labels)


def _docker_client() -> Any:
    from docker import APIClient

    return APIClient(base_url=default_engine(), version="auto", timeout=60)
