"""A two-minute introduction to Paceline: a real Airflow, real data and one run of the example DAG (``make demo``)."""
