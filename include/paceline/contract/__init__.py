"""Models of a job's live state. The operator, the arbiter, the pages and the command line exchange these values.

The TypeScript types of the pages are generated from these models.
"""

from paceline.contract.alerts import AlertKind, SentAlerts
from paceline.contract.ceiling import Ceiling
from paceline.contract.controller import ControllerState, Reported, RunTotals
from paceline.contract.deadline import Deadline
from paceline.contract.history import RunEvent, StoredHistory
from paceline.contract.job import JobRecord
from paceline.contract.keys import ALERTS, CEILING, CONTAINER, CONTROLLER, DEADLINE, HISTORY, OUTPUT, PACE, RESULT
from paceline.contract.record import finite
from paceline.contract.result import CollectedOutput, Outcome, StoredResult, TrainingResult
from paceline.contract.sample import PaceSample, Remaining, State
from paceline.contract.stored_deadline import StoredDeadline

__all__ = [
    "ALERTS",
    "CEILING",
    "CONTAINER",
    "CONTROLLER",
    "DEADLINE",
    "HISTORY",
    "OUTPUT",
    "PACE",
    "RESULT",
    "AlertKind",
    "Ceiling",
    "CollectedOutput",
    "ControllerState",
    "Deadline",
    "JobRecord",
    "Outcome",
    "PaceSample",
    "Remaining",
    "Reported",
    "RunEvent",
    "RunTotals",
    "SentAlerts",
    "State",
    "StoredDeadline",
    "StoredHistory",
    "StoredResult",
    "TrainingResult",
    "finite",
]
