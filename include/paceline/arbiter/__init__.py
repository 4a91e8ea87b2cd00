"""Shares one pool of devices among many jobs: turns the decisions of a policy into ceilings within the pool.

Start at :class:`Arbiter`. It is independent of Airflow: requests of jobs come in, grants go out.
"""

from paceline.arbiter.arbiter import Arbiter
from paceline.arbiter.grants import Grant
from paceline.arbiter.request import DeviceRequest

__all__ = ["Arbiter", "DeviceRequest", "Grant"]
