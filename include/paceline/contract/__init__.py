"""Models of the values that operators, sensors, the arbiter, the web pages and the command line exchange.

These are a job's live state, drift reports, and the results of tasks.
"""

from paceline.contract._alerts import AlertKind, SentAlerts
from paceline.contract._arbiter_result import ArbiterResult
from paceline.contract._arbiter_status import MAX_STARTS, ArbiterStatus, PlannedStart
from paceline.contract._ceiling import Ceiling
from paceline.contract._clock import StoredClock
from paceline.contract._controller import ControllerState, Reported, RunTotals
from paceline.contract._deadline import Deadline
from paceline.contract._drift_event import DriftEvent
from paceline.contract._drift_report import DriftReport
from paceline.contract._drift_summary import DriftSummary, FeatureStatistics, WindowSource
from paceline.contract._evaluation import QUANTILES, Comparison, EvaluationResult, Improvements, ShownEvaluation
from paceline.contract._findings import (
    NEEDS_TRAINING,
    Change,
    ConceptDrift,
    Confusion,
    DriftVerdict,
    FeatureDrift,
    Histogram,
    JointDrift,
    ProblemKind,
    QualityProblem,
    SegmentDrift,
)
from paceline.contract._fleet_result import FleetResult, WorkerResult
from paceline.contract._job import JobRecord
from paceline.contract._keys import (
    ALERTS,
    CEILING,
    CLOCK,
    CONTAINER,
    CONTROLLER,
    DEADLINE,
    HISTORY,
    HISTORY_BEFORE,
    LABEL_RUN_START,
    NOT_STARTED,
    OUTPUT,
    PACE,
    RESULT,
    RUN_KEYS,
    RUN_START,
)
from paceline.contract._performance_estimate import EstimatedPeriod, PerformanceEstimate
from paceline.contract._profile_result import FunctionFit, ProfileResult
from paceline.contract._promotion import PromotionResult, PromotionVerdict
from paceline.contract._reasons import Reason, ReasonKind
from paceline.contract._record import Record, finite, input_error
from paceline.contract._result import CollectedOutput, Outcome, StoredResult, TrainingResult
from paceline.contract._sample import PaceSample, Remaining, State
from paceline.contract._schedule import MachineLoad, ScheduleResult, Shard
from paceline.contract._short_report import XCOM_LIMIT_BYTES, fit_to_xcom
from paceline.contract._start_failure import StartFailure
from paceline.contract._steering import STEERING_XCOM, TASK_STATES, hash_secret
from paceline.contract._stored_deadline import StoredDeadline, storable_deadline
from paceline.contract._stored_files import StoredFiles
from paceline.contract._units import Unit, unit_of
from paceline.contract._xcoms import DRIFT_XCOM, EVALUATION_XCOM, PROMOTION_XCOM, SCHEDULE_XCOM
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
    "HISTORY_BEFORE",
    "LABEL_RUN_START",
    "MAX_STARTS",
    "NEEDS_TRAINING",
    "NOT_STARTED",
    "OUTPUT",
    "PACE",
    "PROMOTION_XCOM",
    "QUANTILES",
    "RESULT",
    "RUN_KEYS",
    "RUN_START",
    "SCHEDULE_XCOM",
    "STEERING_XCOM",
    "TASK_STATES",
    "XCOM_LIMIT_BYTES",
    "AlertKind",
    "ArbiterResult",
    "ArbiterStatus",
    "Ceiling",
    "Change",
    "CollectedOutput",
    "Comparison",
    "ConceptDrift",
    "Confusion",
    "ControllerState",
    "Deadline",
    "DriftEvent",
    "DriftReport",
    "DriftSummary",
    "DriftVerdict",
    "EstimatedPeriod",
    "EvaluationResult",
    "FeatureDrift",
    "FeatureStatistics",
    "FleetResult",
    "FunctionFit",
    "Histogram",
    "Improvements",
    "JobRecord",
    "JointDrift",
    "MachineLoad",
    "Outcome",
    "PaceSample",
    "PerformanceEstimate",
    "PlannedStart",
    "ProblemKind",
    "ProfileResult",
    "PromotionResult",
    "PromotionVerdict",
    "QualityProblem",
    "Reason",
    "ReasonKind",
    "Record",
    "Remaining",
    "Reported",
    "RunEvent",
    "RunTotals",
    "ScheduleResult",
    "SegmentDrift",
    "SentAlerts",
    "Shard",
    "ShownEvaluation",
    "StartFailure",
    "State",
    "StoredClock",
    "StoredDeadline",
    "StoredFiles",
    "StoredHistory",
    "StoredResult",
    "TrainingResult",
    "Unit",
    "WindowSource",
    "WorkerResult",
    "finite",
    "fit_to_xcom",
    "hash_secret",
    "input_error",
    "storable_deadline",
    "unit_of",
]
