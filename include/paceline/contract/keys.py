"""Keys of a training's live state: the rows that its task keeps in Airflow's task state store."""

DEADLINE = "deadline"  # see StoredDeadline; written by the task at its start, then by users
CEILING = "ceiling"  # see Ceiling; written by an arbiter or a user
PACE = "pace"  # the newest PaceSample, about once a second
HISTORY = "history"  # the run so far, thinned; outlives the run
CONTAINER = "container"  # see JobRecord: the job that the next try reconnects to
CONTROLLER = "controller"  # see ControllerState: what the next try goes on from
OUTPUT = "output"  # see CollectedOutput
RESULT = "result"  # see StoredResult; written before anything is removed
ALERTS = "alerts"  # the alerts that have been sent
