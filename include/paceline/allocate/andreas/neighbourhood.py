"""Neighbours of a known schedule, which the randomized greedy search tries in order to improve it.

Each is an order of the jobs and what some of them try first, for
:class:`~paceline.allocate.andreas.construction.Construction` to build: a displaced job gets another place, and no job
waits while there are devices for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import NamedTuple

from paceline.allocate.andreas.construction import Choice, Construction, PendingJob, Placed, Schedule


class SearchStart(NamedTuple):
    """Who chooses first, and what some of the jobs try first, by their numbers."""

    order: list[PendingJob]
    wishes: dict[int, Placed]


def neighbour(
    known: Schedule, work: Construction, order: Sequence[PendingJob], bound: Mapping[int, Placed], draw: Random
) -> SearchStart:
    """A schedule with a few differences: nodes filled anew, or jobs put elsewhere.

    Parameters
    ----------
    known:
        The schedule that is to be improved.
    work:
        What the decision is about.
    order:
        Who chooses first among those that have no place in ``known``.
    bound:
        Running jobs that must not lose anything: what they have in the first schedule, by their numbers.
    draw:
        The source of chance.
    """
    if draw.random() < _REFILL:
        chosen, postponed = _refilled(work, bound, draw), set[int]()
    else:
        chosen, postponed = _reconfigured(work, bound, draw)
    first = [work.tasks[number] for number in chosen]
    keep = [work.tasks[number] for number in known.placed if number not in chosen and number not in postponed]
    rest = [
        task for task in order if not (task.number in chosen or task.number in postponed or task.number in known.placed)
    ]
    last = [work.tasks[number] for number in sorted(postponed)]
    return SearchStart(first + keep + rest + last, {task.number: known.placed[task.number] for task in keep} | chosen)


_REFILL = 0.7  # of the neighbours; the others are reconfigured


def _some(most: int, more: float, draw: Random) -> int:
    """One, often; two, less often; and so on."""
    number = 1
    while number < most and draw.random() < more:
        number += 1
    return number


def _refilled(work: Construction, bound: Mapping[int, Placed], draw: Random) -> dict[int, Placed]:
    """A node, or a few, filled with jobs drawn at random; half of the time with as many as possible.

    No series of single steps leads from jobs that are each alone on a node to all of them on one node, each with few
    devices, as all steps between cost more.
    """
    chosen: dict[int, Placed] = {}
    few = draw.random() < 0.5
    for node in draw.sample(range(len(work.nodes)), _some(len(work.nodes), 0.3, draw)):
        stay = [number for number, given in bound.items() if given.node == node]
        room = work.nodes[node].devices - sum(bound[number].choice.devices for number in stay)
        drawn = draw.sample(range(len(work.tasks)), min(len(work.tasks), work.nodes[node].devices))
        for number in [*stay, *(each for each in drawn if each not in bound and each not in chosen)]:
            least = bound[number].choice.devices if number in bound else 0
            fits = [one for one in _choices(work.tasks[number], node, work) if least <= one.devices <= room + least]
            if fits:
                choice = min(fits, key=lambda one: one.devices) if few else draw.choice(fits)
                chosen[number] = Placed(choice, node)
                room -= choice.devices - least
    return chosen


def _reconfigured(work: Construction, bound: Mapping[int, Placed], draw: Random) -> tuple[dict[int, Placed], set[int]]:
    """A job, or a few, with any other configuration, or postponed."""
    chosen: dict[int, Placed] = {}
    postponed: set[int] = set()
    for number in draw.sample(range(len(work.tasks)), _some(len(work.tasks), 0.5, draw)):
        task = work.tasks[number]
        if number in bound:
            least = bound[number].choice.devices
            choices = [one for one in task.choices if one.stays and one.devices >= least]
        else:
            choices = list(task.choices)
            if draw.random() * (len(choices) + 1) < 1:
                postponed.add(number)
                continue
        choice = draw.choice(choices)
        chosen[number] = Placed(choice, task.node if choice.stays else draw.choice(work.groups[choice.group]))
    return chosen, postponed


def _choices(task: PendingJob, node: int, work: Construction) -> list[Choice]:
    """The configurations of a job on a node."""
    group, here = work.group_of[node], task.node == node
    return [one for one in task.choices if one.group == group and one.stays == here]
