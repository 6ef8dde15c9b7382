"""Partial differential equations: fields, domains, conditions, problems."""

from sklearn_gn.pde.conditions import (
    Condition,
    Dirichlet,
    Initial,
    Neumann,
    Periodic,
    Points,
    Robin,
)
from sklearn_gn.pde.domains import Ball, Box, Domain
from sklearn_gn.pde.operators import Field, apply, d, div, grad, hessian, laplacian
from sklearn_gn.pde.problem import Problem, Reference, ResidualClass, Unknown

__all__ = [
    "Ball",
    "Box",
    "Condition",
    "Dirichlet",
    "Domain",
    "Field",
    "Initial",
    "Neumann",
    "Periodic",
    "Points",
    "Problem",
    "Reference",
    "ResidualClass",
    "Robin",
    "Unknown",
    "apply",
    "d",
    "div",
    "grad",
    "hessian",
    "laplacian",
]
