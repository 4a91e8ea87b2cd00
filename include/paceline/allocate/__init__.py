"""Allocation policies for many jobs on one cluster: which jobs run, where, and on how many devices.

A :class:`Policy` maps the current jobs and nodes to an allocation. Policies are interchangeable, both in the simulator
(:mod:`paceline.simulate.cluster`) and with real jobs.
"""

from paceline.allocate._growing import Growing
from paceline.allocate._installed import make_policy
from paceline.allocate._model import (
    DEVICE,
    Allocation,
    ClusterJob,
    ImpossibleAllocationError,
    Node,
    Placement,
    Policy,
    Reservation,
    check,
    free_devices,
)
from paceline.allocate._ordered import edf, fifo, priority
from paceline.allocate._speeds import Speeds
from paceline.allocate.andreas import LeastCost, RandomizedGreedy
from paceline.allocate.elasticflow import ElasticFlow
from paceline.allocate.modelarts import Greedy, RollingHorizon
from paceline.allocate.on_time import OnTime, most_on_time, on_time_promises

__all__ = [
    "DEVICE",
    "Allocation",
    "ElasticFlow",
    "Greedy",
    "Growing",
    "ImpossibleAllocationError",
    "ClusterJob",
    "LeastCost",
    "Node",
    "OnTime",
    "Placement",
    "Policy",
    "RandomizedGreedy",
    "Reservation",
    "RollingHorizon",
    "Speeds",
    "check",
    "edf",
    "fifo",
    "free_devices",
    "make_policy",
    "most_on_time",
    "on_time_promises",
    "priority",
]
