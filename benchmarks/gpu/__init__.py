"""Benchmark of training on a GPU: its speed under Paceline and without, and its deviation from the deadline."""
