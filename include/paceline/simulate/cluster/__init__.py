"""Simulation of a cluster that many jobs share under any policy of :mod:`paceline.allocate`."""

from paceline.simulate.cluster._overhead import ElasticFlowOverhead
from paceline.simulate.cluster._result import ClusterSample, JobOutcome, SimulationResult
from paceline.simulate.cluster._simulator import Simulation
from paceline.simulate.cluster._workload import Arrival, Friction

__all__ = [
    "Arrival",
    "ElasticFlowOverhead",
    "Friction",
    "JobOutcome",
    "SimulationResult",
    "ClusterSample",
    "Simulation",
]
