"""Comparison of allocators in simulated clusters. Run this benchmark as ``python -m benchmarks.allocators``."""
