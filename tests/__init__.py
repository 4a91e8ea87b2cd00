"""Tests by area, and what several areas share: the Airflow of a test run, and what a failing test prints."""
