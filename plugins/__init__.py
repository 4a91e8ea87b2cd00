"""What Paceline adds to Airflow's own pages, through Airflow's plugin interface: see ``paceline_plugin``."""
