"""What the operators know of Airflow's executors."""

REPORTED_WITHIN_S = 20.0
"""An executor may report the end of a process this many seconds late.

If another process of the same task were running then, Airflow would attribute the report to it, and fail the task.
"""
