"""Measures the figures that the guides promise, in real runs on this machine."""
