"""Simulated jobs and emulated devices in place of real jobs and machines, for tests, benchmarks and the demo."""
