"""Benchmarks. Each module prints one table of figures and writes it as JSON."""
