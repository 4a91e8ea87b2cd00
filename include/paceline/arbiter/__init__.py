"""Shares one pool of devices among many jobs: converts the decisions of a policy into ceilings within the pool.

The entry point is :class:`Arbiter`, which reads the requests of jobs and returns grants; it is independent of Airflow.
"""

from paceline.arbiter._arbiter import Arbiter
from paceline.arbiter._demand import allowed_counts
from paceline.arbiter._grants import Grant
from paceline.arbiter._request import DeviceRequest

__all__ = ["Arbiter", "DeviceRequest", "Grant", "allowed_counts"]
