"""Measures the deviation from the deadline and the core use of real training jobs, as in the tables of DECOR-NN."""
