"""A bench that is closed while it starts a training leaves nothing behind: that is how a killed profile ends."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import docker
import pytest

from paceline.errors import PacelineError
from paceline.fleet import Worker
from paceline.fleet.usage import EngineUsage
from paceline.profile.bench import Bench
from paceline.profile.rehearsal import Training
from paceline.runtime import DockerRuntime

pytestmark = [pytest.mark.docker, pytest.mark.timeout(120)]

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "edge" / "train.py"


@pytest.mark.parametrize("after_s", [0.2, 1.0, 2.5])
def test_a_bench_that_is_closed_by_another_thread_leaves_nothing(
    docker_client: docker.APIClient, trainer_image: str, after_s: float
) -> None:
    machines = [Worker(name=name, kind="part", cores=0.3, memory_gib=1) for name in ("a", "b")]
    server = machines[0].model_copy(update={"name": "server"})
    labels = {"paceline.test": f"bench-{after_s}"}
    gauges = {one.name: EngineUsage(docker_client, one) for one in (*machines, server)}
    raised: list[BaseException] = []

    def train() -> None:
        try:
            with bench:
                bench.train({"a": 16, "b": 16})
        except PacelineError as error:
            raised.append(error)

    runtimes = dict.fromkeys(gauges, DockerRuntime(docker_client))
    bench = Bench(machines, server, Training(SCRIPT, trainer_image), runtimes, gauges, labels=labels)
    under_way = threading.Thread(target=train)
    under_way.start()
    time.sleep(after_s)  # from the first container's start to a training that has begun
    bench.close()
    under_way.join(60)
    assert not under_way.is_alive()
    assert raised, "it did not notice"
    filters = {"label": [f"{name}={value}" for name, value in labels.items()]}
    assert docker_client.containers(all=True, filters=filters) == []
    assert [one["Name"] for one in docker_client.networks() if one["Name"].startswith(bench._run)] == []
