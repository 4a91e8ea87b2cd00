"""Models of a job's live state, which the operator, the arbiter, the web pages and the command line exchange.

The TypeScript types of the pages are generated from these models.
"""

from paceline.contract._alerts import AlertKind, SentAlerts
from paceline.contract._ceiling import Ceiling
from paceline.contract._clock import StoredClock
from paceline.contract._controller import ControllerState, Reported, RunTotals
from paceline.contract._deadline import Deadline
from paceline.contract._job import JobRecord
from paceline.contract._keys import (
    ALERTS,
    CEILING,
    CLOCK,
    CONTAINER,
    CONTROLLER,
    DEADLINE,
    HISTORY,
    LABEL_RUN_START,
    OUTPUT,
    PACE,
    RESULT,
    RUN_START,
)
from paceline.contract._reasons import Reason, ReasonKind
from paceline.contract._record import finite
from paceline.contract._result import CollectedOutput, Outcome, StoredResult, TrainingResult
from paceline.contract._sample import PaceSample, Remaining, State
from paceline.contract._stored_deadline import StoredDeadline, storable_deadline
from paceline.contract._xcoms import DRIFT_XCOM, EVALUATION_XCOM, PROMOTION_XCOM, SCHEDULE_XCOM, STEERING_XCOM
from paceline.contract.history import RunEvent, StoredHistory

__all__ = [
    "ALERTS",
    "CEILING",
    "CLOCK",
    "CONTAINER",
    "CONTROLLER",
    "DEADLINE",
    "DRIFT_XCOM",
    "EVALUATION_XCOM",
    "HISTORY",
    "LABEL_RUN_START",
    "OUTPUT",
    "PACE",
    "PROMOTION_XCOM",
    "RESULT",
    "RUN_START",
    "SCHEDULE_XCOM",
    "STEERING_XCOM",
    "AlertKind",
    "Ceiling",
    "CollectedOutput",
    "ControllerState",
    "Deadline",
    "JobRecord",
    "Outcome",
    "PaceSample",
    "Reason",
    "ReasonKind",
    "Remaining",
    "Reported",
    "RunEvent",
    "RunTotals",
    "SentAlerts",
    "State",
    "StoredClock",
    "StoredDeadline",
    "StoredHistory",
    "StoredResult",
    "TrainingResult",
    "finite",
    "storable_deadline",
]
