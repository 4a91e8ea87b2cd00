"""Simulated jobs: the physics of one training, and its control without waiting. For tests and benchmarks."""
