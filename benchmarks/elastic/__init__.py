"""Elastic trainings on a budget, against Optimus, exhaustive search, and fixed allocations."""
