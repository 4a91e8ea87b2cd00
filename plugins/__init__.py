"""Paceline's Airflow plugin: pages in Airflow's UI and the API behind them. Registered by ``paceline_plugin``."""
