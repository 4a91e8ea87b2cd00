"""Deviation from the deadline and core use of real trainings: the tables of DECOR-NN, side by side."""
