"""Figures of the papers, drawn from the results of the benchmarks.

``python -m benchmarks.figures DIR`` draws all of them. Every function takes the axes
that it draws on, and most take the result of an experiment: what its JSON file holds.
"""
