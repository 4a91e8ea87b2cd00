"""Neighbours of a schedule for the local search of :mod:`~paceline.allocate.andreas._search`.

A neighbour consists of an order of the jobs and preferred placements.
:class:`~paceline.allocate.andreas._construction.Construction` builds a schedule from a neighbour. Displaced jobs get
other placements, and no job waits while devices that the job can use are free.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import NamedTuple

from paceline.allocate.andreas._construction import Choice, Construction, PendingJob, Placed, Schedule


class ConstructionInput(NamedTuple):
    """Input of a construction: the jobs in order of choice, and the placements that they try first, by job number."""

    order: list[PendingJob]
    preferences: dict[int, Placed]


def neighbour(
    schedule: Schedule, problem: Construction, order: Sequence[PendingJob], pinned: Mapping[int, Placed], rng: Random
) -> ConstructionInput:
    """Return a neighbour of a schedule, in which some nodes are refilled or some jobs are reconfigured.

    Parameters
    ----------
    schedule:
        The schedule to improve.
    problem:
        Jobs and nodes of the decision.
    order:
        Order in which the jobs without a placement in ``schedule`` choose configurations.
    pinned:
        Placements of running jobs in the first schedule, by job number; these jobs keep their nodes and devices.
    rng:
        Random number generator.
    """
    if rng.random() < _REFILL_SHARE:
        chosen, postponed = _refill_nodes(problem, pinned, rng), set[int]()
    else:
        chosen, postponed = _reconfigure_jobs(problem, pinned, rng)
    first = [problem.jobs[number] for number in chosen]
    keep = [problem.jobs[number] for number in schedule.placed if number not in chosen and number not in postponed]
    rest = [
        job for job in order if not (job.number in chosen or job.number in postponed or job.number in schedule.placed)
    ]
    last = [problem.jobs[number] for number in sorted(postponed)]
    return ConstructionInput(
        first + keep + rest + last, {job.number: schedule.placed[job.number] for job in keep} | chosen
    )


_REFILL_SHARE = 0.7  # probability of refilling nodes instead of reconfiguring jobs


def _draw_geometric(limit: int, probability: float, rng: Random) -> int:
    """Draw a geometrically distributed number from 1 to ``limit``; each increment has the given ``probability``."""
    number = 1
    while number < limit and rng.random() < probability:
        number += 1
    return number


def _refill_nodes(problem: Construction, pinned: Mapping[int, Placed], rng: Random) -> dict[int, Placed]:
    """Fill one or more random nodes with random jobs; in half of the cases, each job gets as few devices as possible.

    Changing one job at a time cannot gather jobs from several nodes on one node, with few devices per job, because all
    intermediate schedules cost more.
    """
    chosen: dict[int, Placed] = {}
    fewest = rng.random() < 0.5
    for node in rng.sample(range(len(problem.nodes)), _draw_geometric(len(problem.nodes), 0.3, rng)):
        stay = [number for number, given in pinned.items() if given.node == node]
        room = problem.nodes[node].devices - sum(pinned[number].choice.devices for number in stay)
        drawn = rng.sample(range(len(problem.jobs)), min(len(problem.jobs), problem.nodes[node].devices))
        for number in [*stay, *(each for each in drawn if each not in pinned and each not in chosen)]:
            minimum = pinned[number].choice.devices if number in pinned else 0
            fits = [
                one
                for one in _choices_on_node(problem.jobs[number], node, problem)
                if minimum <= one.devices <= room + minimum
            ]
            if fits:
                choice = min(fits, key=lambda one: one.devices) if fewest else rng.choice(fits)
                chosen[number] = Placed(choice, node)
                room -= choice.devices - minimum
    return chosen


def _reconfigure_jobs(
    problem: Construction, pinned: Mapping[int, Placed], rng: Random
) -> tuple[dict[int, Placed], set[int]]:
    """Draw one or more random jobs, and a random configuration for each; postpone some of them instead."""
    chosen: dict[int, Placed] = {}
    postponed: set[int] = set()
    for number in rng.sample(range(len(problem.jobs)), _draw_geometric(len(problem.jobs), 0.5, rng)):
        job = problem.jobs[number]
        if number in pinned:
            minimum = pinned[number].choice.devices
            choices = [one for one in job.choices if one.stays and one.devices >= minimum]
        else:
            choices = list(job.choices)
            if rng.random() * (len(choices) + 1) < 1:
                postponed.add(number)
                continue
        choice = rng.choice(choices)
        chosen[number] = Placed(choice, job.node if choice.stays else rng.choice(problem.groups[choice.group]))
    return chosen, postponed


def _choices_on_node(job: PendingJob, node: int, problem: Construction) -> list[Choice]:
    """Return the possible configurations of a job on a node."""
    group, here = problem.group_of[node], job.node == node
    return [one for one in job.choices if one.group == group and one.stays == here]
