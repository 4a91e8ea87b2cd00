"""Tests, one package per area, and their shared helpers, for example the report of a failed test."""
