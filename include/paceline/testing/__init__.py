"""Simulated jobs and emulated devices in place of real trainings and machines, for tests, benchmarks and the demo."""
