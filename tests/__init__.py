"""Tests by area, and their shared helpers: the Airflow of a test run, and the report of a failed test."""
