"""The REST API behind Paceline's pages, on Airflow's API server, with Airflow's login and permissions."""
