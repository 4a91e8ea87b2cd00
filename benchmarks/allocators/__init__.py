"""Allocators against each other, in simulated clusters. Run it as ``python -m benchmarks.allocators``."""
