"""Keys of XComs that mark the results shown on the overview page. The value is always ``True``.

Each operator or sensor with such a result pushes its key, so its subclasses do too. The result is the task's
``return_value``. Airflow's table of XComs has an index on the key.
"""

EVALUATION_XCOM = "paceline_evaluation"
PROMOTION_XCOM = "paceline_promotion"
DRIFT_XCOM = "paceline_drift"
SCHEDULE_XCOM = "paceline_schedule"
