"""What Paceline adds to Airflow's own pages, through Airflow's plugin interface.

Nothing so far: deadlines are set in the trigger form and the state store, both Airflow's own.
"""
