"""Code for Airflow, apart from operators, sensors and pages: REST client, command line, provider metadata, demo."""
