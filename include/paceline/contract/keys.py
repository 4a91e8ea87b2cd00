"""Keys of a training's live state: the rows that its task keeps in Airflow's task state store."""

DEADLINE = "deadline"  # see StoredDeadline; written by the task at its start, then by users
CEILING = "ceiling"  # see Ceiling; written by an arbiter or a user
PACE = "pace"  # the newest PaceSample, about once a second
HISTORY = "history"  # the run so far, thinned; outlives the run
CONTAINER = "container"  # the job that the next try reconnects to
CONTROLLER = "controller"  # what the controller needs to go on without a bump
ALERTS = "alerts"  # the alerts that have been sent
