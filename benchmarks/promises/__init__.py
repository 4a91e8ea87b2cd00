"""Measures the numbers that the guides promise, in real runs on this machine."""
