"""Penalties and noise by the evidence; posteriors, rows left out, robust losses."""
