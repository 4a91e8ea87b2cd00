"""Airflow integration other than operators, sensors and pages: REST client, command line, provider metadata, demo."""
