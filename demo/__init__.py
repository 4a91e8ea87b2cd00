"""A two-minute introduction to Paceline: a real Airflow, real data and one run of the example DAG (``make demo``).

Belongs to a clone and is not in the wheel. The tests and the benchmarks use its private Airflow, ``AirflowProcess``.
"""
