"""One pool of devices, many trainings: a policy's decisions become their ceilings, and never more than there is.

Start at :class:`Arbiter`. It knows nothing of Airflow: what trainings say comes in, grants go out.
"""

from paceline.arbiter.arbiter import Arbiter
from paceline.arbiter.grants import Grant
from paceline.arbiter.request import DeviceRequest

__all__ = ["Arbiter", "DeviceRequest", "Grant"]
