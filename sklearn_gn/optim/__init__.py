"""Solvers and their parts: the contract, step control, line searches, losses."""
