"""The emulated fleet of the fleet benchmarks, its application and its training."""
