"""What Paceline's pages ask Airflow's API server for, behind Airflow's own login and permissions."""
