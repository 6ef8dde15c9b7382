"""Partial differential equations: fields, domains, conditions, problems."""

from sklearn_gn.pde.coefficients import Piecewise, Unknown
from sklearn_gn.pde.conditions import (
    Condition,
    Dirichlet,
    Initial,
    Neumann,
    Periodic,
    Points,
    Robin,
)
from sklearn_gn.pde.domains import Domain, PointCloud
from sklearn_gn.pde.given_values import Reference
from sklearn_gn.pde.operators import (
    Field,
    apply,
    d,
    div,
    grad,
    hessian,
    integral,
    laplacian,
)
from sklearn_gn.pde.problem import Problem
from sklearn_gn.pde.shapes import Ball, Box, Ellipse, Interval, Polygon

__all__ = [
    "Ball",
    "Box",
    "Condition",
    "Dirichlet",
    "Domain",
    "Ellipse",
    "Field",
    "Initial",
    "Interval",
    "Neumann",
    "Periodic",
    "Piecewise",
    "PointCloud",
    "Points",
    "Polygon",
    "Problem",
    "Reference",
    "Robin",
    "Unknown",
    "apply",
    "d",
    "div",
    "grad",
    "hessian",
    "integral",
    "laplacian",
]
