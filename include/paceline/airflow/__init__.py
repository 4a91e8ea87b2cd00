"""Airflow integration except operators, sensors and pages: REST client, command line, provider metadata, demo."""
