"""How many training jobs one triggerer controls; run it as ``python -m benchmarks.deferred``."""
