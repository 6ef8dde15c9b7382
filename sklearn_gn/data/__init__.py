"""Rows: checks, units, chunks."""
