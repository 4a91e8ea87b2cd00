"""Training jobs of three kinds of networks on nodes with two kinds of GPUs: the workload of section V-B of ANDREAS.

The paper specifies the numbers of nodes, GPUs and jobs, the kinds of networks, epochs, batch sizes and weights (tables
II and V) and the price of electricity. Its authors measured the power of their nodes, but did not publish it:
the GPUs here have the board power from NVIDIA's data sheets (Tesla V100 PCIe 250 W, Tesla T4 70 W). The power of a
host, the unit of the weights, the seconds per epoch, the scaling of networks, the due dates and the arrival rates are
assumptions.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from math import inf
from typing import Literal, NamedTuple

from paceline.allocate import Node, Speeds
from paceline.errors import InvalidInputError
from paceline.simulate.cluster._workload import Arrival

EUR_PER_KWH = 0.172  # section V-A
PUE = 1.33  # section V-A, for ``Simulation(pue=...)``

V100, T4 = "V100", "TURING"
GPUS = {"small": {V100: 2, T4: 1}, "large": {V100: 4, T4: 2}}  # GPUs per node, section V-B

_HOST_W = 200.0  # a server with two sockets, without its GPUs, while a job runs on it; an assumption
_GPU_W = {V100: 250.0, T4: 70.0}  # maximum board power, NVIDIA data sheets of the Tesla V100 PCIe and the Tesla T4
_EPOCHS = (60, 80, 120, 160)
_BATCHES = (4096, 8192)
_DUE_FACTORS = (
    1.5,
    6.0,
)  # range of the time to the due date, relative to the duration of the job alone on the fastest node
_WEIGHTS = (1, 5)
_PHASE_LOADS = (0.5, 1.5)  # offered load in calm and busy phases, relative to the mean load
_PHASE_S = 7200.0  # length of a phase


class Network(NamedTuple):
    """A neural network that jobs train."""

    name: str
    epoch_s: float  # seconds for an epoch on one V100, at the smaller batch size
    scaling: float  # exponent: the speed-up on g GPUs is g to this power
    t4: float  # speed on a T4, relative to a V100


NETWORKS = (
    Network("ConvNet", 10.0, 0.75, 0.50),
    Network("LSTM-small", 20.0, 0.80, 0.36),
    Network("LSTM-big", 60.0, 0.85, 0.36),
    Network("EfficientNet", 90.0, 0.90, 0.42),
)


def heterogeneous_workload(
    nodes: int,
    jobs: int | None = None,
    mix: Literal["small", "large"] = "small",
    seed: int = 0,
    *,
    load: float = 1.0,
    tardiness_eur_per_h: float = 0.3,
) -> tuple[list[Arrival], list[Node]]:
    """Generate a cluster with two kinds of GPUs, and jobs that arrive there at a varying rate.

    Half of the nodes have V100s, and half have T4s. Each job trains one of four networks, with a random batch
    size, weight, due date and number of epochs; alone on one V100, a job takes 9 minutes to 4 hours. Busy phases of 1.5
    times the mean load alternate with calm phases of 0.5 times the mean load. Each phase lasts two hours.

    Parameters
    ----------
    nodes:
        Number of nodes, 2 or more.
    jobs:
        Number of jobs, 1 or more; by default ten per node.
    mix:
        ``"small"``: two V100s or one T4 per node; ``"large"``: four V100s or two T4s.
    seed:
        Random seed. The jobs do not depend on ``load`` and ``tardiness_eur_per_h``.
    load:
        Mean offered load, relative to the capacity of the cluster with one job on each GPU.
    tardiness_eur_per_h:
        Cost of an hour of tardiness of a job with the weight 1, in euro; weights are 1 to 5. The paper gives the
        weights without a unit. It states that a late job costs more per second than its execution on any configuration:
        at 0.3 euro an hour, every late job costs more than the most expensive node.

    Returns
    -------
    tuple
        The jobs in order of arrival, and the nodes. Costs and weights are in euro per second.

    References
    ----------
    Filippini et al., ANDREAS: Artificial intelligence training scheduler for accelerated resource clusters,
    section V-B.

    Examples
    --------
    >>> arrivals, nodes = heterogeneous_workload(10)
    >>> len(arrivals), [node.devices for node in nodes]
    (100, [2, 2, 2, 2, 2, 1, 1, 1, 1, 1])
    """
    if nodes < 2:
        raise InvalidInputError("nodes", nodes, "2 or more, at least one for each kind of GPU")
    if mix not in GPUS:
        raise InvalidInputError("mix", mix, f"one of {', '.join(GPUS)}")
    if jobs is not None and jobs < 1:
        raise InvalidInputError("jobs", jobs, "1 or more")
    gpus = GPUS[mix]
    kinds = [V100] * (nodes - nodes // 2) + [T4] * (nodes // 2)
    cluster = [
        Node(f"{kind}-{number}", gpus[kind], kind, _cost_per_s(kind, gpus[kind])) for number, kind in enumerate(kinds)
    ]
    for field, value in (("load", load), ("tardiness_eur_per_h", tardiness_eur_per_h)):
        if not 0 < value < inf:
            raise InvalidInputError(field, value, "a positive number")
    rng = random.Random(seed)  # noqa: S311 - a simulation, no secret
    drawn = [_draw_job(rng, gpus) for _ in range(10 * nodes if jobs is None else jobs)]
    # Work that the cluster completes per second, in seconds on one V100, if each job has one GPU.
    t4 = sum(network.t4 * network.epoch_s for network in NETWORKS) / sum(network.epoch_s for network in NETWORKS)
    power = kinds.count(V100) * gpus[V100] + kinds.count(T4) * gpus[T4] * t4
    work = sum(one.work for one in drawn) / len(drawn)
    arrivals = [
        Arrival(
            name=f"{one.network.name}-{number}",
            arrives_s=now_s,
            work=one.work,
            speeds=one.speeds,
            deadline_s=now_s + one.due_in_s,
            weight=one.weight * tardiness_eur_per_h / 3600,
        )
        for number, (one, now_s) in enumerate(zip(drawn, _arrival_times_s(rng, load * power / work), strict=False))
    ]
    return arrivals, cluster


class _RandomJob(NamedTuple):
    network: Network
    work: float
    speeds: dict[str, Speeds]
    due_in_s: float
    weight: float


def _draw_job(rng: random.Random, gpus: dict[str, int]) -> _RandomJob:
    network = rng.choice(NETWORKS)
    batch = rng.choice(_BATCHES)
    # Doubling the batch size makes an epoch a tenth shorter and halves the loss of efficiency on several GPUs.
    large = batch == max(_BATCHES)
    work = rng.choice(_EPOCHS) * network.epoch_s * (0.9 if large else 1.0)
    scaling = (1 + network.scaling) / 2 if large else network.scaling
    speeds = {
        kind: Speeds(
            tuple(range(1, most + 1)),
            tuple((1.0 if kind == V100 else network.t4) * count**scaling for count in range(1, most + 1)),
        )
        for kind, most in gpus.items()
    }
    fastest_s = work / max(max(each.per_s) for each in speeds.values())
    return _RandomJob(network, work, speeds, rng.uniform(*_DUE_FACTORS) * fastest_s, float(rng.randint(*_WEIGHTS)))


def _cost_per_s(kind: str, gpus: int) -> tuple[float, ...]:
    """Return costs that are linear in the number of GPUs (section IV-B); idle nodes are free, as in the paper."""
    watts = [0.0] + [_HOST_W + count * _GPU_W[kind] for count in range(1, gpus + 1)]
    return tuple(each / 1000 / 3600 * EUR_PER_KWH for each in watts)


def _arrival_times_s(rng: random.Random, rate_per_s: float) -> Iterator[float]:
    """Yield arrival times: a Poisson process whose rate alternates between low and high phases."""
    now_s, ends_s = 0.0, _PHASE_S
    busy = rng.random() < 0.5
    while True:
        next_s = now_s + rng.expovariate(rate_per_s * _PHASE_LOADS[busy])
        if next_s < ends_s:
            now_s = next_s
            yield now_s
        else:  # the process is memoryless: continue at the new rate from the change of phase
            now_s, busy = ends_s, not busy
            ends_s += _PHASE_S
