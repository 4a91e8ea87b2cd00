"""Makes policies by name: those of this package, and those of other packages with an entry point."""

from __future__ import annotations

import inspect

from paceline.allocate._model import Policy
from paceline.errors import InvalidInputError
from paceline.installed import POLICIES, installed


def make_policy(name: str, field: str = "policy", **known: float) -> Policy:
    """Return a new policy.

    Parameters
    ----------
    name:
        Name of an entry point in the group ``paceline.policies``: a subclass of ``Policy``, or a function that returns
        a policy.
    field:
        The field, for the error message.
    **known:
        Properties of the cluster: ``change_s``, the seconds without progress when an allocation changes; ``period_s``,
        the seconds between two decisions; ``seed``; ... The entry point gets those that are among its parameters.

    Raises
    ------
    InvalidInputError
        If no installed package has a policy with this name, or its entry point does not return a ``Policy``.

    Examples
    --------
    >>> make_policy("edf", period_s=60.0).name
    'edf'
    >>> make_policy("lifo")
    Traceback (most recent call last):
    paceline.errors.InvalidInputError: policy: got 'lifo', expected one of edf, elasticflow, fifo, greedy, growing, \
least_cost, milp, on_time, on_time_promises, priority, rg
    """
    found = installed(POLICIES)
    if name not in found:
        raise InvalidInputError(field, name, f"one of {', '.join(found)}")
    make = found[name].load()
    accepted = inspect.signature(make).parameters
    policy = make(**{key: value for key, value in known.items() if key in accepted})
    if not isinstance(policy, Policy):
        raise InvalidInputError(field, name, f"the name of an entry point for a Policy, not for {policy!r}")
    return policy
