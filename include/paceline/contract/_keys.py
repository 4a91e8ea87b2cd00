"""Keys of a job's live state, which is stored in Airflow's task state store."""

DEADLINE = "deadline"  # see StoredDeadline; written by the task at its start, then by users
CEILING = "ceiling"  # see Ceiling; written by an arbiter or a user
PACE = "pace"  # the newest PaceSample, about once a second
HISTORY = "history"  # see StoredHistory; kept after the run
HISTORY_BEFORE = "history_before"  # HISTORY of the task's job before a new one has started from the beginning
CLOCK = "clock"  # see StoredClock: later processes of the task count the time with it
CONTAINER = "container"  # see JobRecord: the job to which the next try reconnects
CONTROLLER = "controller"  # see ControllerState: the next try resumes control from it
NOT_STARTED = "not_started"  # see StartFailure; counts until a later sample
OUTPUT = "output"  # see CollectedOutput
RESULT = "result"  # see StoredResult; written before the job is removed
ALERTS = "alerts"  # see SentAlerts
RUN_KEYS = (ALERTS, CEILING, CLOCK, CONTAINER, CONTROLLER, DEADLINE)  # those that are deleted with the job
# Start of the DAG run when the task named its first job. It is in names and labels, and is not deleted with the job.
RUN_START = "run_start"

LABEL_RUN_START = "paceline.run_start"  # a job's label with the value of RUN_START
