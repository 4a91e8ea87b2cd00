"""Benchmarks: one module per headline table, which it prints and writes as JSON."""
