"""Benchmarks: one runner and one file per experiment; see benchmarks/README.md."""
