"""Comparison of allocators in simulated clusters. Run it as ``python -m benchmarks.allocators``."""
