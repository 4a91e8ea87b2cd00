"""Trainings that are as fast as their budget allows: against Optimus, exhaustive search, and fixed allocations."""
