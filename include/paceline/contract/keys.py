"""Keys of a training's live state: the rows that its task keeps in Airflow's task state store."""

DEADLINE = "deadline"  # see StoredDeadline; the task writes it at its start, then anyone who may
CEILING = "ceiling"  # see Ceiling; an arbiter or a person writes it
PACE = "pace"  # the newest PaceSample, about once a second
HISTORY = "history"  # the run so far, thinned; outlives the run
CONTAINER = "container"  # the job that the next try reconnects to
CONTROLLER = "controller"  # what the controller needs to go on without a bump
ALERTS = "alerts"  # the alerts that have been sent
