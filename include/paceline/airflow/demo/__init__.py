"""The first two minutes with Paceline: a real Airflow, real data and one run of the example DAG (``make demo``)."""
