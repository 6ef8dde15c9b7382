"""The solution of a problem, where it is known."""

from functools import partial
from typing import Literal

import jax
import numpy as np
from jax import lax

from sklearn_gn._typing import Array
from sklearn_gn.arrays.backend import scope, to_numpy
from sklearn_gn.arrays.numpy_programs import evaluated_by_numpy
from sklearn_gn.pde.reference import is_reference

_CHUNK = 2**20  # numbers of the points at which an exact solution is taken at a time


class ExactSolutionMixin:
    """The exact solution of a problem, and points with it."""

    def exact_values(self, X: Array) -> Array:
        """The exact solution at points.

        Parameters
        ----------
        X : ndarray of shape (n, d)
            Points.

        Returns
        -------
        ndarray of shape (n, q)
            NaN where a component is not known.
        """
        X = np.asarray(X, dtype=float)
        if self.exact is None:
            raise ValueError("exact=None: the problem has no exact solution.")
        if is_reference(self.exact):
            if not np.array_equal(X, self.exact.points):
                raise ValueError(
                    "the solution is known at the points of the reference only."
                )
            return np.array(self.exact.values)
        with scope("float64"):
            return to_numpy(_exact(self, X))

    def reference(
        self,
        n_points: int,
        rng: np.random.RandomState,
        method: Literal["sobol", "halton", "uniform"] = "sobol",
    ) -> tuple[Array, Array]:
        """Points with the exact solution there.

        Parameters
        ----------
        n_points : int
            Points to draw; without effect where a reference brings its own.
        rng : RandomState
            Source of the random numbers.
        method : {"sobol", "halton", "uniform"}, default="sobol"
            How the points are drawn.

        Returns
        -------
        points : ndarray of shape (n, d)
            Points of the domain, or those of the reference.
        values : ndarray of shape (n, q)
            Solution there.
        """
        if self.exact is not None and is_reference(self.exact):
            return np.array(self.exact.points), np.array(self.exact.values)
        X = self.domain.sample(n_points, rng, method)
        return X, self.exact_values(X)


@partial(evaluated_by_numpy, static_argnames="problem")
def _exact(problem, X):
    def value(x):
        return problem.as_outputs(problem.exact(x), "exact")

    chunk = max(1, _CHUNK // X.shape[1])
    if len(X) <= chunk:
        return jax.vmap(value)(X)
    return lax.map(value, X, batch_size=chunk)
