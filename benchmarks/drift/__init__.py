"""False alarms, detection and cost of the drift tests. Run this benchmark as ``python -m benchmarks.drift``."""
