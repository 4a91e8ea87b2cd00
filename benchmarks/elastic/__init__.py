"""Compares elastic training within a budget with Optimus, exhaustive search and fixed allocations."""
